// The tokens of one forward pass.
#pragma once

#include <cstdint>
#include <span>

namespace refold {

struct ForwardInput {
    std::span<const int32_t> tokens;
    std::span<const int32_t> positions;    // of the tokens, for rotation and learned positions
    std::span<const int32_t> token_types;  // empty: all 0
    std::span<const int32_t> mask;         // encoders: 0 hides the token from all; empty: none hidden
    int64_t past = 0;                      // tokens in the cache before these
    int64_t outputs = 0;                   // the last so many tokens include all whose results are wanted
    int64_t sequence_length = 0;           // of the whole sequence (dynamic rotation)
    std::span<const float> residual = {};  // [tokens, n_embd]: the input of a range in place of tokens

    int64_t count() const { return static_cast<int64_t>(positions.size()); }
};

}  // namespace refold
