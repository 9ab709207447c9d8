// Even division of work among the threads of an operation.
#pragma once

#include <cstdint>
#include <utility>

namespace refold {

// This thread's range [first, last) of [0, count).
inline std::pair<int64_t, int64_t> thread_share(int64_t count, int thread, int threads) {
    return {count * thread / threads, count * (thread + 1) / threads};
}

}  // namespace refold
