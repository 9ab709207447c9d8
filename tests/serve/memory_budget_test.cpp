#include "serve/memory_budget.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace refold {
namespace {

TEST(MemoryBudget, IsSharedAndGivenBack) {
    MemoryBudget budget(100);
    auto first = budget.take(60);
    ASSERT_TRUE(first);
    EXPECT_FALSE(budget.take(41));
    const auto second = budget.take(40);
    ASSERT_TRUE(second);
    EXPECT_FALSE(budget.take(1));
    first->shrink(10);
    EXPECT_EQ(first->bytes(), 10U);
    first->shrink(20);  // does not grow
    EXPECT_EQ(first->bytes(), 10U);
    EXPECT_FALSE(budget.take(51));
    EXPECT_TRUE(budget.take(50));
    first.reset();
    EXPECT_TRUE(budget.take(60));
    EXPECT_FALSE(budget.take(101));
}

TEST(MemoryBudget, IsLessWhereTheSystemLimitsTheProcess) {
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
    if (before.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "the process is limited already";
    constexpr size_t kMost = size_t{1} << 45;
    EXPECT_EQ(allowed_memory(kMost, 8), kMost);
    rlimit limited = before;
    limited.rlim_cur = size_t{1} << 46;
    if (setrlimit(RLIMIT_AS, &limited) != 0) GTEST_SKIP() << "the limit cannot be set";
    const size_t allowed = allowed_memory(kMost, 8);
    EXPECT_LE(allowed, (size_t{1} << 44));
    EXPECT_GT(allowed_memory(kMost, 8), allowed_memory(kMost, 1000));
    EXPECT_EQ(allowed_memory(1000, 8), allowed == 0 ? 0U : 1000U);
    setrlimit(RLIMIT_AS, &before);
}

}  // namespace
}  // namespace refold
