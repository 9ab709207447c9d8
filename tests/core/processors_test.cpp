// The number of processors that a process can use, by affinity, physical cores and the quotas of its control
// groups.
#include "core/processors.h"

#include <gtest/gtest.h>

#include "core/fake_root.h"

namespace refold {
namespace {

class ProcessorsTest : public testing::Test, protected FakeRoot {
protected:
    void siblings(int processor, const std::string& list) const {
        write("sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/thread_siblings_list",
              list);
    }
};

TEST_F(ProcessorsTest, WithoutFilesAllThatAreAllowed) {
    const Processors found = processors_of({0, 3, 5}, root());
    EXPECT_EQ(found.allowed, 3);
    EXPECT_EQ(found.cores, 3);
    EXPECT_FALSE(found.quota);
    EXPECT_EQ(found.usable(), 3);
    EXPECT_EQ(processors_of({}, root()).usable(), 1);
}

TEST_F(ProcessorsTest, HyperThreadsOfACoreCountOnce) {
    for (const int i : {0, 2}) siblings(i, "0,2");
    for (const int i : {1, 3}) siblings(i, "1,3");
    EXPECT_EQ(processors_of({0, 1, 2, 3}, root()).usable(), 2);
    EXPECT_EQ(processors_of({0, 2}, root()).usable(), 1);
}

TEST_F(ProcessorsTest, TheSmallestQuotaOfNestedGroups) {
    write("proc/self/cgroup", "0::/system/job");
    write("sys/fs/cgroup/system/job/cpu.max", "max 100000");
    EXPECT_EQ(processors_of({0, 1, 2, 3}, root()).usable(), 4);
    write("sys/fs/cgroup/system/cpu.max", "250000 100000");
    EXPECT_EQ(processors_of({0, 1, 2, 3}, root()).quota, 2.5);
    EXPECT_EQ(processors_of({0, 1, 2, 3}, root()).usable(), 2);
    write("sys/fs/cgroup/system/job/cpu.max", "50000 100000");
    EXPECT_EQ(processors_of({0, 1, 2, 3}, root()).usable(), 1);
}

TEST_F(ProcessorsTest, QuotaOfVersion1) {
    write("proc/self/cgroup", "5:cpuset:/elsewhere\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/");
    write("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1");
    write("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000");
    EXPECT_FALSE(processors_of({0, 1, 2}, root()).quota);
    write("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "200000");
    EXPECT_EQ(processors_of({0, 1, 2}, root()).usable(), 2);
}

TEST_F(ProcessorsTest, NonsenseLimitsNothing) {
    write("proc/self/cgroup", "no group at all\n0::/a/../../b\n:");
    write("sys/fs/cgroup/cpu.max", "many 100000");
    write("sys/fs/cgroup/b/cpu.max", "1 0");
    EXPECT_EQ(processors_of({0, 1}, root()).usable(), 2);
}

TEST(Processors, OfThisProcess) {
    const Processors here = processors();
    EXPECT_GE(here.usable(), 1);
    EXPECT_LE(here.usable(), here.cores);
    EXPECT_LE(here.cores, here.allowed);
}

}  // namespace
}  // namespace refold
