#include "serve/thread_priority.h"

#ifdef __linux__
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace refold {

#ifdef __linux__

namespace {

constexpr int kNice = 10;                // a tenth of what others get
constexpr uint64_t kSlice = 100 * 1000;  // nanoseconds; the shortest that Linux takes, from 6.12 on

// Of the system call: the C library has no declaration before glibc 2.41.
struct SchedulingAttributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice, deadline, period;
};

}  // namespace

void yield_to_steps() {
    SchedulingAttributes attributes{};
    attributes.size = sizeof attributes;
    attributes.nice = getpriority(PRIO_PROCESS, 0) + kNice;
    attributes.slice = kSlice;
    // It may be forbidden, and is no more than a wish.
    static_cast<void>(syscall(SYS_sched_setattr, 0, &attributes, 0));
}

#else

void yield_to_steps() {}

#endif

}  // namespace refold
