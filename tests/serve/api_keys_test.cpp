#include "serve/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/temp_folder.h"
#include "serve/api_error.h"

namespace refold {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

TEST(ApiKeys, FileWithNamesAndLimits) {
    TempFolder folder;
    write_all(folder / "keys",
              "# comment\n\nplain\r\n  two name=alice rpm=60 tpm=100000 concurrent=4\nthree\tname=bob_2\n");
    const std::vector<ApiKey> keys = read_api_keys(folder / "keys");
    ASSERT_EQ(keys.size(), 3U);
    EXPECT_EQ(keys[0].key + keys[0].name, "plain");
    EXPECT_EQ(keys[0].limits, KeyLimits{});
    EXPECT_EQ(keys[1].key, "two");
    EXPECT_EQ(keys[1].name, "alice");
    EXPECT_EQ(keys[1].limits,
              (KeyLimits{.requests_per_minute = 60, .tokens_per_minute = 100000, .concurrent = 4}));
    EXPECT_EQ(keys[2].name, "bob_2");
    for (const char* wrong :
         {"secret rpm=0", "secret rpm=x", "secret rpm=5x", "secret rpm=-1", "secret rpm",
          "secret name=", "secret name=a/b", "secret other=1", "secret rpm=99999999999"}) {
        write_all(folder / "keys", std::string("first\n") + wrong + "\n");
        try {
            read_api_keys(folder / "keys");
            FAIL() << wrong;
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr("line 2"));
            EXPECT_THAT(error.what(), Not(HasSubstr("secret")));
        }
    }
    write_all(folder / "keys", "# nothing\n");
    EXPECT_THROW(read_api_keys(folder / "keys"), Error);
}

TEST(ApiKeys, BothHeadersAndNames) {
    ApiKeys keys({{"one"}, {"two", "alice"}, {"three", "alice"}});
    EXPECT_TRUE(keys.required());
    EXPECT_EQ(keys.find("Bearer one", "")->name(), "key1");
    EXPECT_EQ(keys.find("", "two")->name(), "alice");
    EXPECT_EQ(keys.find("bearer three", ""), keys.find("", "two"));
    EXPECT_EQ(keys.find("", "Bearer one"), nullptr);
    EXPECT_EQ(keys.find("one", ""), nullptr);
    EXPECT_EQ(keys.find("", ""), nullptr);
    EXPECT_EQ(keys.find("Bearer ", ""), nullptr);
    EXPECT_EQ(keys.holders().size(), 2U);
    using Keys = std::vector<ApiKey>;
    EXPECT_THROW(ApiKeys(Keys{{"a", "x", {.concurrent = 1}}, {"b", "x"}}), Error);
    EXPECT_THROW(ApiKeys(Keys{{"a", "two words"}}), Error);
}

TEST(ApiKeys, ReplacedKeysKeepWhatWasUsed) {
    ApiKeys keys({{"old", "alice", {.requests_per_minute = 2}}, {"other"}});
    const auto now = KeyHolder::Clock::now();
    const auto holder = keys.find("Bearer old", "");
    holder->begin(now);
    keys.replace({{"new", "alice", {.requests_per_minute = 3}}});
    EXPECT_EQ(keys.find("Bearer old", ""), nullptr);
    EXPECT_EQ(keys.find("Bearer new", ""), holder);
    holder->begin(now);
    holder->begin(now);
    EXPECT_THROW(holder->begin(now), ApiError);
    EXPECT_EQ(holder->counts().requests, 3U);
    EXPECT_THROW(keys.replace({{"has space"}}), Error);
    EXPECT_EQ(keys.find("Bearer new", ""), holder);
}

ApiError refusal(KeyHolder& holder, KeyHolder::Clock::time_point now) {
    try {
        holder.begin(now);
    } catch (const ApiError& error) {
        return error;
    }
    return ApiError(200, "not refused");
}

TEST(KeyHolder, RequestsPerMinuteComeBackEvenly) {
    const auto holder = std::make_shared<KeyHolder>("alice", KeyLimits{.requests_per_minute = 6});
    const auto start = KeyHolder::Clock::now();
    for (int i = 0; i < 6; ++i) holder->begin(start);
    const ApiError error = refusal(*holder, start);
    EXPECT_EQ(error.status, 429);
    EXPECT_EQ(error.code, "rate_limit_exceeded");
    EXPECT_EQ(error.retry_after, 10);
    EXPECT_THAT(error.message, HasSubstr("'alice' may have 6 requests per minute"));
    EXPECT_EQ(refusal(*holder, start + 9500ms).retry_after, 1);
    holder->begin(start + 11s);
    EXPECT_EQ(refusal(*holder, start + 11s).status, 429);
    EXPECT_EQ(holder->counts().refused, 3U);
    EXPECT_EQ(holder->counts().requests, 7U);
}

TEST(KeyHolder, TokensAreCountedAfterwards) {
    const auto holder = std::make_shared<KeyHolder>("alice", KeyLimits{.tokens_per_minute = 600});
    const auto start = KeyHolder::Clock::now();
    holder->begin(start);
    holder->use_tokens(1000, 200, start);  // more than there was: the rest is owed
    EXPECT_EQ(refusal(*holder, start).retry_after, 61);
    EXPECT_EQ(refusal(*holder, start + 60s).status, 429);
    holder->begin(start + 61s);
    const auto counts = holder->counts();
    EXPECT_EQ(counts.prompt_tokens, 1000U);
    EXPECT_EQ(counts.generated_tokens, 200U);
}

TEST(KeyHolder, RequestsAtATime) {
    const auto holder = std::make_shared<KeyHolder>("alice", KeyLimits{.concurrent = 2});
    const auto now = KeyHolder::Clock::now();
    std::shared_ptr<void> first = holder->begin(now);
    const std::shared_ptr<void> second = holder->begin(now);
    EXPECT_EQ(refusal(*holder, now).retry_after, 1);
    EXPECT_EQ(holder->counts().running, 2);
    first.reset();
    EXPECT_EQ(refusal(*holder, now).status, 200);
}

TEST(KeyHolder, Headers) {
    using Headers = KeyHolder::Headers;
    const auto now = KeyHolder::Clock::now();
    EXPECT_EQ(KeyHolder("free", {}).headers(now), Headers{});
    const auto holder = std::make_shared<KeyHolder>(
        "alice", KeyLimits{.requests_per_minute = 60, .tokens_per_minute = 1000, .concurrent = 1});
    const auto start = KeyHolder::Clock::now();
    holder->begin(start);
    holder->use_tokens(1500, 500, start);
    EXPECT_EQ(holder->headers(start), (Headers{{"x-ratelimit-limit-requests", "60"},
                                               {"x-ratelimit-remaining-requests", "59"},
                                               {"x-ratelimit-reset-requests", "1s"},
                                               {"x-ratelimit-limit-tokens", "1000"},
                                               {"x-ratelimit-remaining-tokens", "0"},
                                               {"x-ratelimit-reset-tokens", "2m0s"}}));
}

}  // namespace
}  // namespace refold
