// Large products put threads that spin to sleep.
#include <gtest/gtest.h>

#include <vector>

#include "core/spinning_threads.h"
#include "linalg/blas.h"

namespace refold {
namespace {

TEST(BlasThreads, OthersSleepDuringLargeProducts) {
    int slept = 0;
    SpinningThreads threads([&] { ++slept; });
    const auto multiply = [](int64_t n) {
        const std::vector<float> a(static_cast<size_t>(n * n), 1);
        std::vector<float> c(a.size());
        blas::multiply(blas::Op::plain, blas::Op::plain, {n, n, n}, a.data(), a.data(), c.data());
    };
    threads.wake();
    multiply(8);  // over before threads have woken up again
    EXPECT_EQ(slept, 0);
    multiply(200);
    EXPECT_EQ(slept, 1);
}

}  // namespace
}  // namespace refold
