// Bodies of /v1/completions and /v1/chat/completions, checked field by field. A field that would change the
// result and is not supported is an error that names it; a field that cannot change it is ignored. Fields
// that OpenAI does not have are named as in vLLM and llama.cpp.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "refold/generation.h"

namespace refold {

// Most choices of one request: prompts times n.
constexpr int64_t kMostChoices = 2048;
constexpr int64_t kMostLogprobs = 20;

struct ApiRequest {
    std::string model;  // empty: not given
    int64_t n = 1;      // choices of each prompt
    // max_tokens and the seed are separate: their defaults depend on the request.
    GenerationOptions options;
    std::optional<int64_t> max_tokens;
    std::optional<uint64_t> seed;
    bool stream = false, include_usage = false;
};

using ApiPrompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest : ApiRequest {
    std::vector<ApiPrompt> prompts;
    bool echo = false;
};

struct ChatRequest : ApiRequest {
    // [{"role", "content": text, ...}] as chat templates take them, the parts of a content joined by line
    // ends.
    nlohmann::ordered_json messages;
};

// Throw ApiError (400) that names the field and what is wrong.
CompletionRequest parse_completion_request(std::string_view body);
ChatRequest parse_chat_request(std::string_view body);

struct TokenizeRequest {
    std::string model, text;
    bool add_special = true;
};
TokenizeRequest parse_tokenize_request(std::string_view body);

struct DetokenizeRequest {
    std::string model;
    std::vector<int32_t> tokens;
};
DetokenizeRequest parse_detokenize_request(std::string_view body);

}  // namespace refold
