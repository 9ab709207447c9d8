// Memory that a process can use, by the machine and the limits of its control groups.
#include "core/memory.h"

#include <gtest/gtest.h>

#include "core/fake_root.h"

namespace refold {
namespace {

class MemoryTest : public testing::Test, protected FakeRoot {};

TEST_F(MemoryTest, OfTheMachine) {
    EXPECT_EQ(memory_of(root()).available, 0U);
    write("proc/meminfo", "MemTotal:  2000 kB\nMemFree:  1 kB\nMemAvailable:  1500 kB");
    EXPECT_EQ(memory_of(root()).available, 1500U * 1024);
    EXPECT_EQ(memory_of(root()).limit, 2000U * 1024);
}

TEST_F(MemoryTest, TheSmallestLimitOfNestedGroups) {
    write("proc/meminfo", "MemTotal:  2000 kB\nMemAvailable:  1500 kB");
    write("proc/self/cgroup", "0::/system/job");
    write("sys/fs/cgroup/system/job/memory.max", "max");
    write("sys/fs/cgroup/system/memory.max", "1024000");
    write("sys/fs/cgroup/system/memory.current", "1000000");
    EXPECT_EQ(memory_of(root()).limit, 1024000U);
    EXPECT_EQ(memory_of(root()).available, 24000U);
    write("sys/fs/cgroup/system/memory.current", "2000000");
    EXPECT_EQ(memory_of(root()).available, 0U);
    write("sys/fs/cgroup/system/memory.max", "99999999999");
    EXPECT_EQ(memory_of(root()).available, 1500U * 1024);
}

TEST_F(MemoryTest, GroupsOfVersionOne) {
    write("proc/meminfo", "MemTotal:  2000 kB\nMemAvailable:  1500 kB");
    write("proc/self/cgroup", "5:memory:/job");
    write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "500000");
    write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "100000");
    EXPECT_EQ(memory_of(root()).available, 400000U);
}

}  // namespace
}  // namespace refold
