// Where the threads of an operation wait for each other.
#pragma once

#include <atomic>
#include <thread>

namespace refold {

class Meeting {
public:
    // Returns when all threads have called it; the last one to come calls `last` before.
    template <class Last>
    void wait(int threads, Last last) {
        const int generation = generation_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            last();
            arrived_.store(0, std::memory_order_relaxed);
            generation_.store(generation + 1, std::memory_order_release);
            return;
        }
        // They arrive within microseconds, unless the machine is shared.
        for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; ++spins) {
            if (spins > 10000) std::this_thread::yield();
        }
    }

private:
    std::atomic<int> arrived_{0}, generation_{0};
};

}  // namespace refold
