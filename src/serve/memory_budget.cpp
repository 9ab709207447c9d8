#include "serve/memory_budget.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace refold {

void MemoryBudget::Lease::shrink(size_t bytes) {
    if (bytes >= bytes_) return;
    budget_.taken_ -= bytes_ - bytes;
    bytes_ = bytes;
}

std::shared_ptr<MemoryBudget::Lease> MemoryBudget::take(size_t bytes) {
    size_t taken = taken_;
    do {
        if (bytes > bytes_ - taken) return nullptr;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes));
    return std::make_shared<Lease>(*this, bytes);
}

size_t allowed_memory(size_t most, size_t threads) {
    rlimit limit{}, stack{};
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return most;
    getrlimit(RLIMIT_STACK, &stack);
    constexpr size_t kStack = 8 << 20;  // where the system sets no limit
    const size_t stacks = threads * (stack.rlim_cur == RLIM_INFINITY ? kStack : stack.rlim_cur);
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const size_t used = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + stacks;
    return std::min(most, limit.rlim_cur > used ? (limit.rlim_cur - used) / 4 : 0);
}

}  // namespace refold
