// A barrier for the threads of one ggml operation.
#pragma once

#include <atomic>
#include <thread>

namespace refold {

// Reusable, as std::barrier, but the number of threads is given with each call and threads spin first.
class SpinBarrier {
public:
    // Returns when all `threads` threads have called it. The last one to arrive calls on_completion() before
    // it releases the others.
    template <class Completion>
    void arrive_and_wait(int threads, Completion on_completion) {
        const int generation = generation_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            on_completion();
            arrived_.store(0, std::memory_order_relaxed);
            generation_.store(generation + 1, std::memory_order_release);
            return;
        }
        // Threads arrive within microseconds unless the machine is shared.
        for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; ++spins) {
            if (spins > 10000) std::this_thread::yield();
        }
    }
    void arrive_and_wait(int threads) {
        arrive_and_wait(threads, [] {});
    }

private:
    std::atomic<int> arrived_{0}, generation_{0};
};

}  // namespace refold
