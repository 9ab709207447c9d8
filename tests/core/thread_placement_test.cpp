#include "core/thread_placement.h"

#include <gtest/gtest.h>

#ifdef __linux__
#include <sched.h>

#include <thread>
#endif

namespace refold {
namespace {

TEST(ThreadPlacement, TheLaterOfTwoThatMeetMoves) {
    ThreadPlacement placement(3);
    for (int call = 0; call < 10; ++call) {
        EXPECT_FALSE(placement.meets(0, 5));
        EXPECT_FALSE(placement.meets(1, 4));
        EXPECT_EQ(placement.meets(2, 5), call == 1);  // and not again at once
    }
}

TEST(ThreadPlacement, MeetingByChance) {
    ThreadPlacement placement(2);
    for (int call = 0; call < 99; ++call) {
        EXPECT_FALSE(placement.meets(0, 5));
        EXPECT_FALSE(placement.meets(1, call % 2 == 0 ? 4 : 5));
    }
}

#ifdef __linux__
TEST(ThreadPlacement, LeavesAProcessorAndMayReturn) {
    std::thread([] {
        cpu_set_t before, after;
        ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
        if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "there is one processor";
        const int processor = sched_getcpu();
        leave_processors({processor, -1});
        EXPECT_NE(sched_getcpu(), processor);
        ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
        EXPECT_TRUE(CPU_EQUAL(&before, &after));
        std::vector<int> all;
        for (int i = 0; i < CPU_SETSIZE; ++i) all.push_back(i);
        leave_processors(all);  // nowhere to go
        ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
        EXPECT_TRUE(CPU_EQUAL(&before, &after));
    }).join();
}
#endif

}  // namespace
}  // namespace refold
