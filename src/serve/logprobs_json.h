// Log probabilities of tokens as OpenAI's interface writes them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "generation/request.h"
#include "generation/utf8_stream.h"
#include "text/tokenizer.h"

namespace refold {

// A token as text. A token that is part of a UTF-8 character is written as OpenAI does: "bytes:\xe2\x80".
std::string token_text(const Tokenizer& tokenizer, int32_t token);

// Where tokens begin in a text.
class TextOffsets {
public:
    explicit TextOffsets(int64_t characters = 0) : characters_(characters) {}
    // Adds a token's bytes. Returns how many characters of the text are before it: those of the tokens before
    // it, with U+FFFD for bytes that are none, and without a character that this token goes on with.
    int64_t add(std::string_view piece);
    int64_t characters() const { return characters_; }

private:
    int64_t characters_;
    Utf8Stream stream_;
};

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
    TextOffsets text_;
    nlohmann::ordered_json out_ = empty();
    static nlohmann::ordered_json empty();
};

// "logprobs" of chat completions.
nlohmann::ordered_json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprob> tokens);

}  // namespace refold
