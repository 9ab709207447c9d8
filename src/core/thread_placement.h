// Where the threads of a step run.
#pragma once

#include <atomic>
#include <vector>

namespace refold {

// Threads that spin while they wait for each other must not share a core: at every operation each waits until
// the system takes the core from the other one, and a step takes many times as long. Linux may leave them
// there for a tenth of a second while other programs have the other cores. So they move apart.
// Threads are not bound to cores: another process may need one.
class ThreadPlacement {
public:
    explicit ThreadPlacement(int threads) : threads_(static_cast<size_t>(threads)) {}

    // Called by each thread, from 0, now and then during a step. Moves the calling thread if one with a lower
    // number has been on the same processor in several calls.
    void here(int thread) {
        if (const int processor = current(); processor >= 0 && meets(thread, processor)) move(thread);
    }

    // Notes where the thread is. Returns whether it should move.
    bool meets(int thread, int processor);

private:
    struct Thread {
        std::atomic<int> processor{-1};
        int met = 0;  // calls in a row
    };

    static int current();
    void move(int thread);

    std::vector<Thread> threads_;
};

// Moves the calling thread to a processor that is not one of these, if it may use others.
void leave_processors(const std::vector<int>& processors);

}  // namespace refold
