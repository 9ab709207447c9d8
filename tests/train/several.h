// Runs with several processes, which are threads of the test.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "train/free_port.h"
#include "train/torch/processes.h"

namespace refold {

inline std::vector<Rendezvous> rendezvous_of_all(int size) {
    std::vector<Rendezvous> all;
    const uint16_t port = free_port();
    for (int rank = 0; rank < size; ++rank)
        all.push_back({rank, size, rank, "127.0.0.1", port, std::chrono::seconds(30)});
    return all;
}

// Runs every process in its thread and returns the exception of each.
inline std::vector<std::exception_ptr> errors_in(const std::vector<Rendezvous>& all,
                                                 const std::function<void(const Rendezvous&)>& body) {
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
    const auto errors = errors_in(rendezvous_of_all(size), [&](const Rendezvous& rendezvous) {
        Processes processes(rendezvous);
        body(processes);
    });
    for (const std::exception_ptr& error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace refold
