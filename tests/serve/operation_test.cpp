// What operators need of the server: limits of keys, the access log, readiness.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/gate.h"
#include "serve/running_server.h"

namespace refold {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Operation, KeysHaveLimits) {
    Gate gate;
    RunningOptions setup;
    setup.engine.on_step = gate.hook();
    setup.server.api_keys = {{"a", "alice", {.requests_per_minute = 100, .concurrent = 1}},
                             {"b", "bob", {.requests_per_minute = 1}},
                             {"c", "carol", {.tokens_per_minute = 1}}};
    RunningServer running(setup);
    HttpClient first = running.client();
    first.send(post_text("/v1/completions", completion().dump(), "x-api-key: a\r\n"));
    ASSERT_TRUE(running.soon([&] { return running.engine().open_sequences() == 1; }));
    const HttpReply second = running.post("/v1/completions", completion(), "Authorization: Bearer a\r\n");
    expect_error(second, 429, "rate_limit_exceeded", "'alice' may have 1 requests at a time");
    EXPECT_EQ(second.headers.at("retry-after"), "1");
    EXPECT_EQ(second.headers.at("x-ratelimit-limit-requests"), "100");
    EXPECT_EQ(second.json()["error"]["type"], "rate_limit_error");
    // What has no body has no limit, and others have their own.
    EXPECT_EQ(running.get("/v1/models", "x-api-key: a\r\n").status, 200);
    gate.open();
    const HttpReply reply = first.receive();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("x-ratelimit-limit-requests"), "100");
    EXPECT_EQ(running.post("/tokenize", {{"prompt", "x"}}, "x-api-key: b\r\n").status, 200);
    EXPECT_EQ(running.post("/tokenize", {{"prompt", "x"}}, "x-api-key: b\r\n").status, 429);
    EXPECT_EQ(running.post("/v1/completions", completion(), "x-api-key: c\r\n").status, 200);
    ASSERT_TRUE(running.soon([&] { return running.log().size() == 6; }));
    EXPECT_EQ(running.post("/v1/completions", completion(), "x-api-key: c\r\n").status, 429);
    // A client that has its answer may ask again at once.
    for (int i = 0; i < 20; ++i) {
        const json body = completion({{"stream", i % 2 == 0}});
        const HttpReply next = running.post("/v1/completions", body, "x-api-key: a\r\n");
        ASSERT_EQ(next.status, 200) << next.body;
    }
    // Metrics have names, and no keys.
    const std::string metrics = running.get("/metrics", "x-api-key: a\r\n").body;
    for (const char* line :
         {"refold_key_requests_total{key=\"alice\"} 21", "refold_key_refused_total{key=\"alice\"} 1",
          "refold_key_prompt_tokens_total{key=\"carol\"} 3",
          "refold_key_generated_tokens_total{key=\"carol\"} 8", "refold_key_requests_running{key=\"bob\"} 0"})
        EXPECT_THAT(metrics, HasSubstr(std::string("\n") + line));
}

TEST(Operation, KeysAreReplaced) {
    RunningOptions setup;
    setup.server.api_keys = {{"old"}};
    RunningServer running(setup);
    running.server().set_keys({{"new"}});
    EXPECT_EQ(running.get("/v1/models", "x-api-key: old\r\n").status, 401);
    EXPECT_EQ(running.get("/v1/models", "x-api-key: new\r\n").status, 200);
}

// A request of a key with a limit gets no more slots than that.
TEST(Operation, ChoicesCountAgainstTheLimit) {
    RunningOptions setup;
    setup.server.api_keys = {{"a", "alice", {.concurrent = 2}}};
    RunningServer running(setup);
    int64_t most = 0;
    HttpClient client = running.client();
    client.send(
        post_text("/v1/completions", completion({{"n", 16}, {"max_tokens", 30}}).dump(), "x-api-key: a\r\n"));
    ASSERT_TRUE(running.soon([&] {
        most = std::max(most, running.engine().open_sequences());
        return running.scheduler().status().generated_tokens == 16 * 30;
    }));
    EXPECT_EQ(client.receive().status, 200);
    EXPECT_LE(most, 2);
}

TEST(Operation, RequestsAreFoundAgain) {
    RunningServer running;
    const std::string parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const HttpReply reply = running.post("/v1/completions", completion({{"n", 2}}),
                                         "X-Request-Id: mine-1\r\ntraceparent: " + parent + "\r\n");
    EXPECT_EQ(reply.headers.at("x-request-id"), "mine-1");
    EXPECT_EQ(reply.headers.at("traceparent"), parent);
    ASSERT_TRUE(running.soon([&] { return running.log().size() == 1; }));
    const HttpReply other = running.get("/nothing", "X-Request-Id: not mine\r\ntraceparent: 00-1-2-3\r\n");
    EXPECT_THAT(other.headers.at("x-request-id"), testing::StartsWith("req-"));
    EXPECT_FALSE(other.headers.contains("traceparent"));
    ASSERT_TRUE(running.soon([&] { return running.log().size() == 2; }));
    const ServedRequest served = running.log()[0];
    const json line = json::parse(access_log_line(served));
    EXPECT_EQ(line["request_id"], "mine-1");
    EXPECT_EQ(line["traceparent"], parent);
    EXPECT_EQ(line["method"], "POST");
    EXPECT_EQ(line["path"], "/v1/completions");
    EXPECT_EQ(line["status"], 200);
    EXPECT_EQ(line["model"], "org/fake");
    EXPECT_EQ(line["prompt_tokens"], 3);
    EXPECT_EQ(line["completion_tokens"], 16);
    EXPECT_EQ(line["cached_tokens"], 0);
    EXPECT_EQ(line["finish_reasons"], json({{"length", 2}}));
    EXPECT_THAT(line["time"].get<std::string>(),
                testing::MatchesRegex("20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z"));
    EXPECT_LE(line["queue_seconds"], line["first_token_seconds"]);
    EXPECT_LE(line["first_token_seconds"], line["seconds"]);
    const json short_line = json::parse(access_log_line(running.log()[1]));
    EXPECT_EQ(short_line["status"], 404);
    EXPECT_EQ(short_line["request_id"], other.headers.at("x-request-id"));
    for (const char* name :
         {"traceparent", "key", "model", "queue_seconds", "prompt_tokens", "finish_reasons"})
        EXPECT_FALSE(short_line.contains(name)) << name;
}

TEST(Operation, LinesOfTheAccessLogAreOneLine) {
    ServedRequest served;
    served.path = "/\"\n\xff";
    served.arrived = std::chrono::sys_days(std::chrono::year(2026) / 11 / 26) + std::chrono::milliseconds(7);
    const std::string line = access_log_line(served);
    EXPECT_THAT(line, testing::StartsWith("{\"time\":\"2026-11-26T00:00:00.007Z\""));
    EXPECT_EQ(line.find('\n'), line.npos);
    EXPECT_EQ(json::parse(line)["path"], "/\"\n\xef\xbf\xbd");
    EXPECT_EQ(json::parse(access_log_gap(3))["lost_lines"], 3);
}

TEST(Operation, ReadyUntilTheQueueIsFull) {
    Gate gate;
    RunningOptions setup;
    setup.engine.on_step = gate.hook();
    setup.scheduler.slots = 1;
    setup.scheduler.queue = 1;
    RunningServer running(setup);
    EXPECT_EQ(running.get("/ready").json()["status"], "ready");
    HttpClient first = running.client(), second = running.client();
    first.send(post_text("/v1/completions", completion().dump()));
    ASSERT_TRUE(running.soon([&] { return running.engine().open_sequences() == 1; }));
    EXPECT_EQ(running.get("/ready").status, 200);
    second.send(post_text("/v1/completions", completion().dump()));
    ASSERT_TRUE(running.soon([&] {
        const SchedulerStatus s = running.scheduler().status();
        return s.running == 1 && s.waiting == 1;
    }));
    const HttpReply full = running.get("/ready");
    expect_error(full, 503, "queue_full", "queue is full");
    EXPECT_EQ(running.get("/health").status, 200);
    gate.open();
    EXPECT_EQ(first.receive().status, 200);
    EXPECT_EQ(second.receive().status, 200);
    EXPECT_TRUE(running.soon([&] { return running.get("/ready").status == 200; }));
}

}  // namespace
}  // namespace refold
