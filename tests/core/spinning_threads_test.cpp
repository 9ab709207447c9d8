// One owner's threads spin at a time.
#include "core/spinning_threads.h"

#include <gtest/gtest.h>

#include <optional>

#include "core/parallel.h"

namespace refold {
namespace {

TEST(SpinningThreads, SleepWhenOthersWake) {
    int a_slept = 0, b_slept = 0;
    SpinningThreads a([&] { ++a_slept; }), b([&] { ++b_slept; });
    a.wake();
    a.wake();
    EXPECT_EQ(a_slept, 0);
    b.wake();
    EXPECT_EQ(a_slept, 1);
    b.wake();
    EXPECT_EQ(a_slept, 1);
    EXPECT_EQ(b_slept, 0);
    a.wake();
    EXPECT_EQ(b_slept, 1);
}

TEST(SpinningThreads, SleepOnceForOtherWork) {
    int slept = 0;
    SpinningThreads threads([&] { ++slept; });
    SpinningThreads::all_sleep();
    EXPECT_EQ(slept, 0);  // never woken
    threads.wake();
    SpinningThreads::all_sleep();
    SpinningThreads::all_sleep();
    EXPECT_EQ(slept, 1);
    threads.wake();
    parallel_for(1, 2, [](int64_t) {});
    EXPECT_EQ(slept, 1);  // work of one thread
    parallel_for(2, 2, [](int64_t) {});
    EXPECT_EQ(slept, 2);
}

TEST(SpinningThreads, AreForgottenWithTheirOwner) {
    int slept = 0;
    std::optional<SpinningThreads> gone(std::in_place, [&] { ++slept; });
    gone->wake();
    gone.reset();
    SpinningThreads other([] {});
    other.wake();
    SpinningThreads::all_sleep();
    EXPECT_EQ(slept, 0);
}

}  // namespace
}  // namespace refold
