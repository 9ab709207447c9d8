#include "serve/request_queue.h"

#include <gtest/gtest.h>

namespace refold {
namespace {

using namespace std::chrono_literals;

Submitted submitted(int32_t token, Clock::time_point deadline = Clock::time_point::max()) {
    Submitted out;
    out.request.prompt = {token};
    out.channel = std::make_shared<Channel>();
    out.deadline = deadline;
    return out;
}

std::vector<int32_t> names(const std::deque<Submitted>& all) {
    std::vector<int32_t> out;
    for (const auto& one : all) out.push_back(one.request.prompt.front());
    return out;
}

TEST(RequestQueue, FirstComeFirstServed) {
    RequestQueue queue(8, 0);
    for (int32_t token : {3, 1, 2}) ASSERT_TRUE(queue.push(submitted(token)));
    for (int32_t token : {3, 1, 2}) {
        EXPECT_EQ(queue.front()->request.prompt.front(), token);
        EXPECT_EQ(queue.pop().request.prompt.front(), token);
    }
    EXPECT_EQ(queue.front(), nullptr);
}

// A client that has asked for much waits for those that have less, but not for ever.
TEST(RequestQueue, ClientsTakeTurns) {
    RequestQueue queue(8, 0);
    const auto push = [&](int32_t token, uint64_t client) {
        Submitted out = submitted(token);
        out.client = client;
        queue.push(std::move(out));
    };
    for (int32_t token : {1, 2, 3, 4}) push(token, 7);
    push(10, 8);
    push(20, 9);
    const auto next = [&] {
        EXPECT_NE(queue.front(), nullptr);
        return queue.pop().request.prompt.front();
    };
    EXPECT_EQ(next(), 1);
    EXPECT_EQ(next(), 10);
    EXPECT_EQ(next(), 20);
    EXPECT_EQ(next(), 2);
    push(11, 8);
    EXPECT_EQ(next(), 11);
    queue.left(7);
    queue.left(7);
    push(12, 8);
    EXPECT_EQ(next(), 3);
    EXPECT_EQ(next(), 4);
    EXPECT_EQ(next(), 12);
}

TEST(RequestQueue, OnlyRequestsWithoutASlotCountAsWaiting) {
    RequestQueue queue(1, 1);
    EXPECT_TRUE(queue.push(submitted(1)));
    EXPECT_TRUE(queue.push(submitted(2)));
    EXPECT_FALSE(queue.push(submitted(3)));
    // The first request takes the slot, so the second fills the queue.
    queue.pop();
    EXPECT_FALSE(queue.push(submitted(4)));
    queue.set_free_slots(1);
    EXPECT_TRUE(queue.push(submitted(5)));
    EXPECT_EQ(queue.waiting(), 2);
}

TEST(RequestQueue, TakesOutWhatMustEndWhereverItStands) {
    const auto now = Clock::now();
    RequestQueue queue(8, 0);
    queue.push(submitted(1));
    queue.push(submitted(2, now));
    Submitted cancelled = submitted(3);
    cancelled.channel->cancel();
    queue.push(std::move(cancelled));
    queue.push(submitted(4, now + 1ms));
    EXPECT_EQ(names(queue.pop_ended(now)), (std::vector<int32_t>{2, 3}));
    EXPECT_EQ(names(queue.pop_all()), (std::vector<int32_t>{1, 4}));
}

TEST(RequestQueue, ClosedTakesNothingAndNeverEndsLater) {
    RequestQueue queue(8, 0);
    ASSERT_TRUE(queue.push(submitted(1)));
    const auto now = Clock::now();
    queue.close(now + 10s);
    queue.close(now + 20s);
    EXPECT_EQ(queue.end(), now + 10s);
    queue.close(now);
    EXPECT_EQ(queue.end(), now);
    EXPECT_FALSE(queue.push(submitted(2)));
    EXPECT_TRUE(queue.wait());
    queue.pop();
    EXPECT_FALSE(queue.wait());
}

}  // namespace
}  // namespace refold
