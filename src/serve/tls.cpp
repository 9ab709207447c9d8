#include "serve/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include "core/error.h"

namespace refold {
namespace {

std::string problem() {
    const unsigned long code = ERR_peek_last_error();
    const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
    return reason == nullptr ? "unreadable" : reason;
}

// A password would be asked for at the terminal.
int no_password(char*, int, int, void*) { return 0; }

// Clients that offer HTTP/2 as well are told that it is HTTP/1.1.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* size, const unsigned char* offered,
                    unsigned int offered_size, void*) {
    static constexpr unsigned char kOurs[] = "\x08http/1.1";
    unsigned char* chosen = nullptr;
    if (SSL_select_next_proto(&chosen, size, kOurs, sizeof kOurs - 1, offered, offered_size) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

std::shared_ptr<SSL_CTX> make_context(const TlsFiles& files) {
    ERR_clear_error();
    std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
    if (!context) throw std::bad_alloc();
    SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
    // A client could have the server negotiate again and again.
    SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                        SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_default_passwd_cb(context.get(), no_password);
    SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
    if (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1)
        fail(ErrorCode::input, "serve", "'{}' is no certificate in PEM: {}", files.certificate, problem());
    if (SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1)
        fail(ErrorCode::input, "serve", "'{}' is no key in PEM, without a password, of '{}': {}", files.key,
             files.certificate, problem());
    return context;
}

}  // namespace

Tls::Tls(TlsFiles files) : files_(std::move(files)), context_(make_context(files_)) {}

void Tls::reload() {
    std::shared_ptr<SSL_CTX> context = make_context(files_);
    const std::lock_guard lock(mutex_);
    context_.swap(context);
}

SSL* Tls::begin(int socket) const {
    std::shared_ptr<SSL_CTX> context;
    {
        const std::lock_guard lock(mutex_);
        context = context_;
    }
    SSL* const ssl = SSL_new(context.get());
    if (ssl == nullptr || SSL_set_fd(ssl, socket) != 1) {
        SSL_free(ssl);
        return nullptr;
    }
    SSL_set_accept_state(ssl);
    return ssl;
}

std::string key_file_note(const std::string& path) {
    struct stat state {};
    if (stat(path.c_str(), &state) != 0 || (state.st_mode & S_IROTH) == 0) return "";
    return fmt::format("note: every user of this machine can read the key '{}' - chmod o= it", path);
}

}  // namespace refold
