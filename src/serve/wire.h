// The bytes of one connection, plain or over TLS. Nothing waits for the client. One thread at a time.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "serve/tls.h"

namespace refold {

class Wire {
public:
    static constexpr ssize_t kLater = -1;   // poll for events() first
    static constexpr ssize_t kBroken = -2;  // nothing can be sent any more
    // What a connection over TLS counts as: OpenSSL 3.0 keeps about 16 KiB for one that waits, and more while
    // it reads or writes.
    static constexpr size_t kTlsMemory = 24 << 10;

    // Takes over `socket`, which does not block. Plain without `tls`.
    Wire(int socket, const Tls* tls);
    ~Wire();
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;

    int socket() const { return socket_; }
    // TLS without the keys to send or receive anything: shake_hands() until it is false. Without memory
    // for TLS the handshake has failed() from the start.
    bool shaking_hands() const { return shaking_; }
    void shake_hands();
    bool failed() const { return failed_; }

    // Bytes; 0 when the client has ended or is lost; kLater.
    ssize_t receive(char* to, size_t size);
    // Bytes, fewer than `size` perhaps; kLater, after which the same bytes must be sent; kBroken.
    ssize_t send(const char* from, size_t size);
    // What poll() must wait for after kLater or a handshake that goes on.
    short events() const { return events_; }
    // Tells the client that nothing follows. From then on receive() takes what it still sends as it comes, to
    // be thrown away.
    void end();
    size_t memory() const { return ssl_ == nullptr ? 0 : kTlsMemory; }

private:
    ssize_t outcome(int result);

    int socket_;
    ssl_st* ssl_ = nullptr;
    short events_;
    bool shaking_ = false, failed_ = false, broken_ = false, ended_ = false;
};

}  // namespace refold
