#include "core/thread_placement.h"

#include <algorithm>

#ifdef __linux__
#include <sched.h>
#endif

namespace refold {

bool ThreadPlacement::meets(int thread, int processor) {
    constexpr int kMeetings = 2;   // by chance they are fewer: places change between two threads' calls
    constexpr int kPause = -1000;  // calls after a move: it may not have helped
    Thread& own = threads_[static_cast<size_t>(thread)];
    own.processor.store(processor, std::memory_order_relaxed);
    const bool meets = std::any_of(threads_.begin(), threads_.begin() + thread, [&](const Thread& other) {
        return other.processor.load(std::memory_order_relaxed) == processor;
    });
    if (own.met < 0 || meets)
        ++own.met;
    else
        own.met = 0;
    if (own.met < kMeetings) return false;
    own.met = kPause;
    return true;
}

void ThreadPlacement::move(int thread) {
    std::vector<int> others;
    for (size_t i = 0; i < threads_.size(); ++i)
        if (i != static_cast<size_t>(thread)) others.push_back(threads_[i].processor);
    leave_processors(others);
}

#ifdef __linux__

int ThreadPlacement::current() { return sched_getcpu(); }

void leave_processors(const std::vector<int>& processors) {
    cpu_set_t allowed, others;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;  // more processors than a set holds
    others = allowed;
    for (const int processor : processors)
        if (processor >= 0) CPU_CLR(static_cast<size_t>(processor), &others);
    if (CPU_COUNT(&others) == 0) return;
    sched_setaffinity(0, sizeof others, &others);
    sched_setaffinity(0, sizeof allowed, &allowed);
}

#else

int ThreadPlacement::current() { return -1; }
void leave_processors(const std::vector<int>&) {}

#endif

}  // namespace refold
