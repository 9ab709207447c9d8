#include "serve/wire.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string_view>

namespace refold {
namespace {

constexpr std::string_view kPlain =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    R"({"error": {"message": "this port speaks HTTPS: ask for https://", )"
    R"("type": "invalid_request_error", "param": null, "code": "https_needed"}})";

}  // namespace

Wire::Wire(int socket, const Tls* tls)
    : socket_(socket), ssl_(tls == nullptr ? nullptr : tls->begin(socket)), events_(POLLIN) {
    shaking_ = ssl_ != nullptr;
    failed_ = tls != nullptr && ssl_ == nullptr;
}

Wire::~Wire() {
    if (!ended_) end();
    SSL_free(ssl_);
    close(socket_);
}

void Wire::shake_hands() {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_);
    events_ = POLLIN;
    if (result == 1) {
        shaking_ = false;
        return;
    }
    const int error = SSL_get_error(ssl_, result);
    if (error == SSL_ERROR_WANT_READ) return;
    if (error == SSL_ERROR_WANT_WRITE) {
        events_ = POLLOUT;
        return;
    }
    shaking_ = false;
    failed_ = true;
    if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST)
        static_cast<void>(!::send(socket_, kPlain.data(), kPlain.size(), MSG_NOSIGNAL));
    ERR_clear_error();
}

ssize_t Wire::outcome(int result) {
    events_ = POLLIN;
    if (result > 0) return result;
    switch (SSL_get_error(ssl_, result)) {
        case SSL_ERROR_WANT_READ: return kLater;
        case SSL_ERROR_WANT_WRITE: events_ = POLLOUT; return kLater;
        case SSL_ERROR_ZERO_RETURN: return 0;
        default: broken_ = true; return 0;
    }
}

ssize_t Wire::receive(char* to, size_t size) {
    if (ssl_ != nullptr && !ended_) {
        ERR_clear_error();
        return outcome(SSL_read(ssl_, to, static_cast<int>(std::min<size_t>(size, INT_MAX))));
    }
    events_ = POLLIN;
    const ssize_t count = recv(socket_, to, size, 0);
    if (count >= 0) return count;
    return errno == EAGAIN || errno == EINTR ? kLater : 0;
}

ssize_t Wire::send(const char* from, size_t size) {
    if (failed_ || broken_ || shaking_ || ended_) return kBroken;
    if (ssl_ != nullptr) {
        ERR_clear_error();
        const ssize_t count =
            outcome(SSL_write(ssl_, from, static_cast<int>(std::min<size_t>(size, INT_MAX))));
        return count == 0 ? kBroken : count;
    }
    for (;;) {
        const ssize_t count = ::send(socket_, from, size, MSG_NOSIGNAL);
        if (count >= 0) return count;
        if (errno == EINTR) continue;
        events_ = POLLOUT;
        return errno == EAGAIN ? kLater : kBroken;
    }
}

void Wire::end() {
    if (ssl_ != nullptr && !failed_ && !broken_ && !shaking_) {
        ERR_clear_error();
        SSL_shutdown(ssl_);
    }
    ::shutdown(socket_, SHUT_WR);
    ended_ = true;
    shaking_ = false;
    events_ = POLLIN;
}

}  // namespace refold
