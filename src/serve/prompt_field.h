// A field that is a text, texts, token ids or arrays of token ids.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "serve/fields.h"

namespace refold {

using ApiPrompt = std::variant<std::string, std::vector<int32_t>>;

// At least one and at most `most`. Throws ApiError (400) that names the field.
std::vector<ApiPrompt> read_prompts(Fields& fields, const char* field, int64_t most);

// Throws ApiError (400) for ids that the vocabulary does not have.
void check_ids(const std::vector<int32_t>& ids, int64_t n_vocab, const char* field);

}  // namespace refold
