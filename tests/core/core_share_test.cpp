#include "core/core_share.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

namespace refold {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kAlways(100000), kNever(-1000);

std::unique_ptr<CoreShare::Part> taken(CoreShare& share, int most) {
    return std::unique_ptr<CoreShare::Part>(new CoreShare::Part(share.take(most)));
}

TEST(CoreShare, WhoIsAloneHasAll) {
    CoreShare share(4, kAlways);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(share.take(4).threads(), 4);
    EXPECT_EQ(share.take(2).threads(), 2);
    EXPECT_EQ(share.take(9).threads(), 9);  // as the user has asked for
}

TEST(CoreShare, TwoHaveHalfEachAtTheSameTime) {
    CoreShare share(4, kAlways);
    auto first = taken(share, 4);
    std::promise<void> has, end;
    auto second = std::async(std::launch::async, [&] {
        const CoreShare::Part part = share.take(4);
        has.set_value();
        end.get_future().wait();
        return part.threads();
    });
    std::this_thread::sleep_for(milliseconds(10));  // it waits, or asks later: the same
    first.reset();
    has.get_future().wait();
    first = taken(share, 4);  // beside the second one's part
    EXPECT_EQ(first->threads(), 2);
    end.set_value();
    EXPECT_EQ(second.get(), 2);
    EXPECT_EQ(share.take(1).threads(), 1);
}

TEST(CoreShare, WhoWasThereLongAgoDoesNotCount) {
    CoreShare share(4, kNever);
    std::async(std::launch::async, [&] { share.take(4); }).get();
    EXPECT_EQ(share.take(4).threads(), 4);
}

TEST(CoreShare, NeverMoreThanAllAndAllInTurn) {
    CoreShare share(4, kAlways);
    std::atomic<int> running = 0, most = 0;
    std::vector<std::future<int>> callers;
    for (int caller = 0; caller < 7; ++caller) {
        callers.push_back(std::async(std::launch::async, [&] {
            int steps = 0;
            for (; steps < 200; ++steps) {
                const CoreShare::Part part = share.take(3);
                const int now = running += part.threads();
                int before = most;
                while (now > before && !most.compare_exchange_weak(before, now)) {
                }
                running -= part.threads();
            }
            return steps;
        }));
    }
    for (auto& caller : callers) EXPECT_EQ(caller.get(), 200);
    EXPECT_LE(most, 4);
    EXPECT_GE(most, 1);
}

}  // namespace
}  // namespace refold
