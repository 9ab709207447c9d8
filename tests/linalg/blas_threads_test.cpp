// The threads of products, and those of others meanwhile.
#include "linalg/blas_threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "core/spinning_threads.h"
#include "linalg/blas.h"

extern "C" int openblas_get_num_threads(void) __attribute__((weak));

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
    multiply(400);
    EXPECT_EQ(slept, 1);
}

size_t threads_of_this_process() {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(BlasThreads, EndWithTheOperation) {
    if (openblas_get_num_threads == nullptr) GTEST_SKIP() << "not OpenBLAS";
    const int threads = blas::threads();
    blas::set_threads(2);
    const size_t before = threads_of_this_process();
    constexpr int64_t kSize = 400;
    const std::vector<float> a(kSize * kSize, 1);
    std::vector<float> c(a.size());
    blas::multiply(blas::Op::plain, blas::Op::plain, {kSize, kSize, kSize}, a.data(), a.data(), c.data());
    EXPECT_EQ(c.front(), kSize);
    // A thread that was told to end may still be doing so.
    for (int i = 0; i < 10'000 && threads_of_this_process() > before; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(threads_of_this_process(), before);
    EXPECT_EQ(blas::threads(), 2);
    blas::set_threads(threads);
}

TEST(BlasThreads, OneWhileSeveralCall) {
    if (openblas_get_num_threads == nullptr) GTEST_SKIP() << "not OpenBLAS";
    const int before = blas::threads();
    blas::set_threads(2);
    {
        const blas::SingleThread single(true);
        EXPECT_EQ(blas::threads(), 1);
    }
    EXPECT_EQ(blas::threads(), 2);
    {
        const blas::SingleThread single(false);
        EXPECT_EQ(blas::threads(), 2);
    }
    blas::set_threads(before);
}

}  // namespace
}  // namespace refold
