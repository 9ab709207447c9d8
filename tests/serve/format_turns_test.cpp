// Formats that take long to compile: within the request's time, while the client is there, and in turns.
#include "serve/format_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "serve/http_server.h"
#include "serve/running_server.h"
#include "serve/service.h"
#include "serve/templates.h"

namespace refold {
namespace {

using namespace std::chrono_literals;

constexpr const char* kSlow = R"({"type": "string", "pattern": "(\\w{1,100}\\s?){1,100}"})";

void no_check() {}

TEST(FormatTurns, OneOfEachClientAtATime) {
    FormatTurns turns(2, 10);
    auto first = turns.take(1, no_check);
    auto other = turns.take(2, no_check);
    std::vector<int> order;
    std::mutex mutex;
    const auto wait = [&](uint64_t client, int name) {
        return std::async(std::launch::async, [&, client, name] {
            const auto turn = turns.take(client, no_check);
            const std::lock_guard lock(mutex);
            order.push_back(name);
        });
    };
    auto again = wait(1, 1), third = wait(3, 3);
    EXPECT_EQ(third.wait_for(100ms), std::future_status::timeout);  // two are all
    other.reset();
    third.get();
    EXPECT_EQ(again.wait_for(100ms), std::future_status::timeout);  // its client has a turn
    first.reset();
    again.get();
    EXPECT_EQ(order, (std::vector{3, 1}));
}

TEST(FormatTurns, TheNextIsTheClientWhoseTurnIsLongestAgo) {
    FormatTurns turns(1, 10);
    auto turn = turns.take(1, no_check);
    std::vector<uint64_t> order;
    std::vector<std::thread> threads;
    std::atomic<size_t> waiting{0};
    for (const uint64_t client : {1, 1, 1, 2}) {  // the last one comes last
        threads.emplace_back([&, client] {
            bool counted = false;
            const auto mine = turns.take(client, [&] { waiting += std::exchange(counted, true) ? 0 : 1; });
            order.push_back(client);  // one at a time
        });
        while (waiting < threads.size()) std::this_thread::yield();
    }
    turn.reset();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(order, (std::vector<uint64_t>{2, 1, 1, 1}));
}

TEST(FormatTurns, FewWait) {
    FormatTurns turns(1, 4);
    const auto turn = turns.take(1, no_check);
    std::atomic<bool> stop{false};
    std::atomic<int> waiting{0};
    std::vector<std::thread> threads;
    const auto wait = [&](uint64_t client) {
        threads.emplace_back([&, client] {
            bool counted = false;
            const auto check = [&] {
                if (!std::exchange(counted, true)) ++waiting;
                if (stop) throw std::runtime_error("stop");
            };
            EXPECT_THROW(turns.take(client, check), std::runtime_error);
        });
        const int before = static_cast<int>(threads.size());
        while (waiting < before) std::this_thread::yield();
    };
    for (int i = 0; i < 3; ++i) wait(1);
    EXPECT_THROW(turns.take(1, no_check), ApiError);  // three quarters are one client's
    wait(2);
    try {
        turns.take(3, no_check);
        ADD_FAILURE() << "there is room";
    } catch (const ApiError& error) {
        EXPECT_EQ(error.status, 429);
        EXPECT_EQ(error.retry_after, 1);
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
}

const json kTool = {{"name", "f"}, {"parameters", json::parse(kSlow)}};

const std::vector<std::pair<const char*, json>> kRequests = {
    {"/v1/completions", completion({{"guided_json", kSlow}})},
    {"/v1/completions", completion({{"guided_regex", "(((\\w{1,90}\\s?){1,90}x?){1,90})*"}, {"n", 2}})},
    {"/v1/chat/completions",
     chat({{"response_format",
            {{"type", "json_schema"}, {"json_schema", {{"schema", json::parse(kSlow)}}}}}})},
    {"/v1/chat/completions", chat({{"tools", {{{"type", "function"}, {"function", kTool}}}}})},
    {"/v1/responses",
     {{"input", "Hello"},
      {"text", {{"format", {{"type", "json_schema"}, {"name", "n"}, {"schema", json::parse(kSlow)}}}}}}},
    {"/v1/messages",
     {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
      {"max_tokens", 8},
      {"tools", {{{"name", "f"}, {"input_schema", json::parse(kSlow)}}}}}},
    {"/api/generate", {{"prompt", "Hello"}, {"format", json::parse(kSlow)}}},
    {"/api/chat",
     {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}, {"format", json::parse(kSlow)}}}};

TEST(FormatTurns, CompilingLooksAtTheRequestsTime) {
    RunningOptions setup;
    setup.chat_template = kTemplate;
    setup.scheduler.timeout = 20ms;  // a small part of the work that is allowed
    RunningServer running(setup);
    for (const auto& [path, body] : kRequests) {
        const HttpReply reply = running.post(path, body);
        EXPECT_EQ(reply.status, 504) << path << body << reply.body;
    }
    // A turn is free again. Time may run out for this one as well, on a busy machine.
    EXPECT_TRUE(running.soon([&] {
        return running.post("/v1/completions", completion({{"guided_regex", "a+"}})).status == 200;
    }));
}

TEST(FormatTurns, CompilingEndsWhenTheClientLeaves) {
    RunningServer running;
    {
        HttpClient client = running.client();
        client.send(post_text("/v1/completions", completion({{"guided_json", kSlow}}).dump()));
        // Others wait for nothing meanwhile, and another format is compiled.
        EXPECT_EQ(running.post("/v1/completions", completion({{"guided_regex", "a+"}})).status, 200);
    }
    ASSERT_TRUE(running.soon([&] { return running.log().size() == 2; }));
    EXPECT_EQ(running.log().back().status, kClientGone);
}

}  // namespace
}  // namespace refold
