// What the server shows to clients over TLS 1.2 and later: a certificate and its key.
#pragma once

#include <memory>
#include <mutex>
#include <string>

struct ssl_ctx_st;
struct ssl_st;

namespace refold {

// PEM files: the certificate with those that vouch for it, and its key without a password.
struct TlsFiles {
    std::string certificate, key;
};

class Tls {
public:
    // Throws Error(input) when the files are not a certificate and its key.
    explicit Tls(TlsFiles files);
    // Reads the files again, for connections that begin afterwards. Throws as the constructor does, and then
    // keeps what it had. Any thread.
    void reload();
    // The server's end of a new connection over `socket`. Null when there is no memory. The caller frees it.
    ssl_st* begin(int socket) const;

private:
    const TlsFiles files_;
    mutable std::mutex mutex_;
    std::shared_ptr<ssl_ctx_st> context_;
};

// What the operator should know about the key's file; mostly empty.
std::string key_file_note(const std::string& path);

}  // namespace refold
