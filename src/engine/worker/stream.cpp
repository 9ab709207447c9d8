#include "engine/worker/stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace refold::rpc {
namespace {

bool again(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

SocketStream::SocketStream(int socket, MessageTime time) : socket_(socket), time_(time) {}

SocketStream::~SocketStream() { close(socket_); }

void SocketStream::wait(short events, const char* what) const {
    pollfd wanted{socket_, events, 0};
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
        if (left <= 0) fail(ErrorCode::io, "worker", "the client takes too long to {} a message", what);
        constexpr int64_t kMostWait = 1 << 30;
        const int ready = poll(&wanted, 1, static_cast<int>(std::min<int64_t>(left, kMostWait)));
        if (ready > 0) return;
        if (ready < 0 && errno != EINTR) fail(ErrorCode::io, "worker", "poll: {}", strerror(errno));
    }
}

std::optional<Command> SocketStream::next() {
    pollfd wanted{socket_, POLLIN, 0};
    for (;;) {
        uint8_t command = 0;
        const ssize_t count = recv(socket_, &command, 1, MSG_DONTWAIT);
        if (count == 1) {
            begin(0);
            return static_cast<Command>(command);
        }
        if (count == 0 || !again(errno)) return std::nullopt;
        poll(&wanted, 1, -1);
    }
}

void SocketStream::read(std::span<std::byte> out) {
    while (!out.empty()) {
        const ssize_t count = recv(socket_, out.data(), out.size(), MSG_DONTWAIT);
        if (count == 0) fail(ErrorCode::io, "worker", "the client left in the middle of a message");
        if (count > 0)
            out = out.subspan(static_cast<size_t>(count));
        else if (again(errno))
            wait(POLLIN, "send");
        else
            fail(ErrorCode::io, "worker", "the client is lost: {}", strerror(errno));
    }
}

void SocketStream::write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t count = send(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count >= 0)
            bytes = bytes.subspan(static_cast<size_t>(count));
        else if (again(errno))
            wait(POLLOUT, "read");
        else
            fail(ErrorCode::io, "worker", "the client is lost: {}", strerror(errno));
    }
}

bool SocketStream::has_left() {
    pollfd wanted{socket_, POLLRDHUP, 0};
    return poll(&wanted, 1, 0) > 0 && (wanted.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace refold::rpc
