// Prompts that ask for the text between a beginning and an end.
#pragma once

#include <optional>

#include "text/tokenizer.h"

namespace refold {

// Tokens of the vocabulary that mark the parts of such a prompt.
struct FillTokens {
    int32_t prefix = 0, suffix = 0, middle = 0;
};

// Nothing when the vocabulary has none.
std::optional<FillTokens> fill_tokens(const Tokenizer& tokenizer);

// Throws ApiError (400) that names the field 'suffix' when the vocabulary has none.
FillTokens needed_fill_tokens(const Tokenizer& tokenizer);

// The beginning may have BOS in front, which stays there.
std::vector<int32_t> fill_prompt(const FillTokens& tokens, const Tokenizer& tokenizer,
                                 const std::vector<int32_t>& beginning, const std::string& end);

}  // namespace refold
