#include "serve/thread_priority.h"

#include <gtest/gtest.h>

#ifdef __linux__
#include <sys/resource.h>

#include <thread>

namespace refold {
namespace {

// For Linux, priorities are those of threads.
TEST(ThreadPriority, OfTheCallingThreadAlone) {
    const int before = getpriority(PRIO_PROCESS, 0);
    if (before > 9) GTEST_SKIP() << "there is no lower one by ten";
    std::thread([&] {
        yield_to_steps();
        EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before + 10);
    }).join();
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);
}

}  // namespace
}  // namespace refold
#endif
