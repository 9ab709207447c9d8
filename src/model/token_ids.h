// Token ids are checked wherever they come in, by the program or by its users.
#pragma once

#include <cstdint>
#include <span>

#include "core/error.h"

namespace refold {

// Throws Error(input), which names `component`, unless 0 <= token < n_vocab.
inline void check_token_id(int32_t token, int64_t n_vocab, const char* component) {
    if (token < 0 || token >= n_vocab)
        fail(ErrorCode::input, component, "token id {} is not in the vocabulary of {}", token, n_vocab);
}

inline void check_token_ids(std::span<const int32_t> tokens, int64_t n_vocab, const char* component) {
    for (const int32_t token : tokens) check_token_id(token, n_vocab, component);
}

}  // namespace refold
