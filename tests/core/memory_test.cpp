// Memory that a process can use, by the machine and the limits of its control groups.
#include "core/memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

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

TEST_F(MemoryTest, OfTheAddressSpace) {
    write("proc/meminfo", "MemTotal:  2000 kB\nMemAvailable:  1500 kB");
    write("proc/self/statm", "100 7 7 7 0 7 0");
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
    constexpr rlim_t kLimit = rlim_t{1} << 46;  // sanitizers need many TB
    const rlimit limited{kLimit, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limited), 0);
    EXPECT_EQ(memory_of(root()).available, 1500U * 1024);
    const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    write("proc/self/statm", std::to_string(kLimit / page - 2));
    EXPECT_EQ(memory_of(root()).available, 2 * page);
    write("proc/self/statm", std::to_string(kLimit / page + 2));
    EXPECT_EQ(memory_of(root()).available, 0U);
    setrlimit(RLIMIT_AS, &before);
}

}  // namespace
}  // namespace refold
