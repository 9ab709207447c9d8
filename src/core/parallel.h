// Data-parallel loop over plain threads, for work on weights (inference has the engine's own pool).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/processors.h"
#include "core/spinning_threads.h"

namespace refold {

inline std::atomic<int> g_threads{0};

// Sets the result of default_threads(); 0 restores the default.
inline void set_default_threads(int threads) { g_threads = threads; }

// The number set above, else all processors that this process can use, divided by the number of processes
// that torchrun runs on this machine (LOCAL_WORLD_SIZE).
inline int default_threads() {
    if (g_threads > 0) return g_threads;
    const char* processes = std::getenv("LOCAL_WORLD_SIZE");
    return std::max(1,
                    processors().usable() / (processes == nullptr ? 1 : std::max(1, std::atoi(processes))));
}

// Calls body(i) for every i in [0, count) on up to `threads` threads; the first exception is rethrown.
template <typename Body>
void parallel_for(int64_t count, int threads, Body&& body) {
    if (threads > 1 && count > 1) SpinningThreads::all_sleep();
    std::atomic<int64_t> next{0};
    std::exception_ptr error;
    std::mutex mutex;
    const auto work = [&] {
        for (int64_t i; (i = next.fetch_add(1)) < count;) {
            try {
                body(i);
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (!error) error = std::current_exception();
                next = count;
            }
        }
    };
    {
        std::vector<std::jthread> pool;
        for (int t = 1; t < threads && t < count; ++t) pool.emplace_back(work);
        work();
    }
    if (error) std::rethrow_exception(error);
}

}  // namespace refold
