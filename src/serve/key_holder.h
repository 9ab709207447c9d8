// Somebody who has API keys: limits, and what was used of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace refold {

// 0: no limit.
struct KeyLimits {
    int64_t requests_per_minute = 0;
    int64_t tokens_per_minute = 0;  // of prompts and answers
    int64_t concurrent = 0;         // requests at a time, and sequences of one request at a time

    bool operator==(const KeyLimits&) const = default;
};

// What may be used in a minute. It comes back evenly, so a minute's worth can be used at once.
class Allowance {
public:
    using Clock = std::chrono::steady_clock;

    // 0: no limit.
    void set_limit(int64_t per_minute, Clock::time_point now);
    int64_t limit() const { return limit_; }
    // Below 0 when more was used than there was.
    double left(Clock::time_point now) const;
    void use(int64_t count, Clock::time_point now);
    // Until `left` is at least `wanted`.
    std::chrono::milliseconds until(double wanted, Clock::time_point now) const;

private:
    int64_t limit_ = 0;
    double left_ = 0;  // at `at_`
    Clock::time_point at_;
};

// Any thread.
class KeyHolder : public std::enable_shared_from_this<KeyHolder> {
public:
    using Clock = std::chrono::steady_clock;
    using Headers = std::vector<std::pair<std::string, std::string>>;

    KeyHolder(std::string name, const KeyLimits& limits);

    const std::string& name() const { return name_; }
    KeyLimits limits() const;
    // What was used stays used.
    void set_limits(const KeyLimits& limits);

    // The turn of one request, which ends when the result is destroyed. Throws ApiError (429) when a limit
    // is reached.
    std::shared_ptr<void> begin(Clock::time_point now);
    // Counts the tokens of a request that has been answered.
    void use_tokens(int64_t prompt, int64_t generated, Clock::time_point now);
    // OpenAI's x-ratelimit-*, of the limits that there are.
    Headers headers(Clock::time_point now) const;

    struct Counts {
        uint64_t requests = 0, refused = 0;
        uint64_t prompt_tokens = 0, generated_tokens = 0;
        int64_t running = 0;  // requests
    };
    Counts counts() const;

private:
    void end();

    const std::string name_;
    mutable std::mutex mutex_;
    KeyLimits limits_;
    Allowance requests_, tokens_;
    Counts counts_;
};

}  // namespace refold
