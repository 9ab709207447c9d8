// One request and its response, for those who answer, count and log it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "serve/key_holder.h"

namespace refold {

struct Exchange {
    using Clock = std::chrono::steady_clock;

    int socket = -1;
    std::string client;  // "address:port"
    std::string method, path;
    const char* endpoint = "other";  // route, for metrics
    int status = 0;
    bool client_gone = false;     // left before the response was complete
    bool close = false;           // the connection is not reused
    Clock::time_point start;      // when the request was complete
    std::shared_ptr<void> holds;  // kept until the response is sent
    size_t memory = 0;            // bytes that answering took, as far as they are known

    std::string id, traceparent;        // trace_headers.h
    std::shared_ptr<KeyHolder> holder;  // who asks, if there are keys
    std::shared_ptr<void> turn;         // of the holder; over before the last of the answer is sent
    std::string model;                  // that answers
    int64_t prompt_tokens = 0, completion_tokens = 0;
    int64_t cached_tokens = 0;  // of the prompts: what the KV cache had
    std::optional<Clock::time_point> first_slot, first_token;
    std::map<std::string, int64_t> finished;  // choices by why they ended
};

}  // namespace refold
