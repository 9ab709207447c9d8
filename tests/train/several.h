// Runs of several processes, as threads of a test.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "train/torch/processes.h"

namespace refold {

// A port that nothing listens on.
inline uint16_t free_port() {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
    close(socket);
    return ntohs(address.sin_port);
}

inline std::vector<ProcessPlace> places(int size) {
    std::vector<ProcessPlace> all;
    const uint16_t port = free_port();
    for (int rank = 0; rank < size; ++rank) all.push_back({rank, size, rank, "127.0.0.1", port});
    return all;
}

// Every place in its thread; what each of them throws.
inline std::vector<std::exception_ptr> errors_in(const std::vector<ProcessPlace>& all,
                                                 const std::function<void(const ProcessPlace&)>& body) {
    std::vector<std::exception_ptr> errors(all.size());
    {
        std::vector<std::jthread> threads;
        for (size_t i = 0; i < all.size(); ++i) {
            threads.emplace_back([&, i] {
                try {
                    body(all[i]);
                } catch (...) {
                    errors[i] = std::current_exception();
                }
            });
        }
    }
    return errors;
}

inline void in_processes(int size, const std::function<void(Processes&)>& body) {
    const auto errors = errors_in(places(size), [&](const ProcessPlace& place) {
        Processes processes(place, std::chrono::seconds(30));
        body(processes);
    });
    for (const std::exception_ptr& error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace refold
