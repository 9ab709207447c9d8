// A request in memory, with the connection that takes its response, as cpp-httplib reads and writes them.
#pragma once

#include <httplib.h>

#include <chrono>
#include <string_view>

#include "serve/wire.h"

namespace refold {

// The client at the other end of `socket` has closed its own.
bool client_gone(int socket);

class ExchangeStream : public httplib::Stream {
public:
    // `write_timeout`: the longest wait for the client in all.
    ExchangeStream(Wire& wire, std::string_view request, std::chrono::milliseconds write_timeout)
        : wire_(wire), request_(request), most_(write_timeout), patience_(write_timeout) {}

    bool is_readable() const override { return !request_.empty(); }
    bool is_writable() const override { return !failed_ && !client_gone(wire_.socket()); }
    ssize_t read(char* to, size_t size) override;
    // Writes everything, or returns -1.
    ssize_t write(const char* from, size_t size) override;
    void get_remote_ip_and_port(std::string& ip, int& port) const override;
    void get_local_ip_and_port(std::string& ip, int& port) const override;
    // httplib compares it with select()'s limit only; select() is not used here.
    socket_t socket() const override { return 0; }
    bool failed() const { return failed_; }

private:
    bool wait();

    Wire& wire_;
    std::string_view request_;
    std::chrono::milliseconds most_, patience_;  // of the longest wait, what is left
    bool failed_ = false;
};

}  // namespace refold
