// Bodies of responses: objects and stream chunks of OpenAI's completions and chat completions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "serve/scheduler.h"
#include "text/tokenizer.h"

namespace refold {

// A token as text. A token that is part of a UTF-8 character is written as OpenAI does: "bytes:\xe2\x80".
std::string token_text(const Tokenizer& tokenizer, int32_t token);

// "logprobs" of legacy completions: four arrays over the tokens. `text_offset` counts the characters of the
// choice's text before a token.
class LegacyLogprobs {
public:
    LegacyLogprobs(const Tokenizer& tokenizer, bool top) : tokenizer_(tokenizer), top_(top) {}
    // Adds the prompt of a choice that echoes it. The first token has no log probability: `logprobs` are
    // those of tokens[1..]. `text` is the prompt as echoed; the first `added` tokens (BOS) are not in it.
    void add_prompt(std::span<const int32_t> tokens, size_t added, const std::string& text,
                    std::span<const TokenLogprob> logprobs);
    void add(std::span<const TokenLogprob> tokens);
    // Returns what was added since the last call.
    nlohmann::ordered_json take();

private:
    void add_token(int32_t token, const TokenLogprob* logprob, bool special, bool in_text);
    const Tokenizer& tokenizer_;
    bool top_;
    int64_t characters_ = 0;  // of the text before the next token
    nlohmann::ordered_json out_ = empty();
    static nlohmann::ordered_json empty();
};

// "logprobs" of chat completions.
nlohmann::ordered_json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprob> tokens);

struct Usage {
    int64_t prompt_tokens = 0, completion_tokens = 0;
    nlohmann::ordered_json json() const;
};

// "stop" or "length". Throws ApiError for generations that ended otherwise.
const char* finish_name(const GenerationEvent& last);

// The fields that all responses to one request have in common.
struct ResponseHead {
    bool chat = false;
    std::string id, model;
    int64_t created = 0;  // seconds since 1970

    nlohmann::ordered_json object(nlohmann::ordered_json choices, bool chunk) const;
};
ResponseHead new_response(bool chat, const std::string& model);

// A new id, as "chatcmpl-...".
std::string new_id(const char* prefix);

}  // namespace refold
