// A request that was answered, as the logs show it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "serve/exchange.h"

namespace refold {

struct ServedRequest {
    std::string client, method, path;  // path has printable characters only
    int status = 0;                    // or kClientGone
    double seconds = 0;                // from its arrival to the end of the answer
    int64_t prompt_tokens = 0, completion_tokens = 0;
    int64_t cached_tokens = 0;  // of the prompts: what the KV cache had
    std::string id, traceparent;
    std::string key;    // name of the key's holder
    std::string model;  // that answered
    // Seconds from the arrival until the first choice had a slot, and until there was a token.
    std::optional<double> queue_seconds, first_token_seconds;
    std::map<std::string, int64_t> finished;        // choices by why they ended
    std::chrono::system_clock::time_point arrived;  // as far as the clock was not set meanwhile
};

ServedRequest served_request(const Exchange& exchange, Exchange::Clock::time_point end);

constexpr int kClientGone = 499;

// One line of JSON, without its end. What is not known is left out.
std::string access_log_line(const ServedRequest& request);
// The line that stands for `count` lines that were lost.
std::string access_log_gap(size_t count);

}  // namespace refold
