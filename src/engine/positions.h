// Positions of a sequence's tokens, for rotation and learned positions.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "model/config.h"

namespace refold {

// Into `positions`, whose memory is reused. RoBERTa counts from padding_token + 1 and gives padding the
// position padding_token.
inline void fill_positions(const ModelConfig& config, std::span<const int32_t> tokens, int64_t past,
                           std::vector<int32_t>& positions) {
    positions.resize(tokens.size());
    if (!config.padding_token) {
        std::iota(positions.begin(), positions.end(), static_cast<int32_t>(past));
        return;
    }
    int32_t next = *config.padding_token;
    for (size_t t = 0; t < tokens.size(); ++t)
        positions[t] = tokens[t] == *config.padding_token ? *config.padding_token : ++next;
}

inline std::vector<int32_t> positions_of(const ModelConfig& config, std::span<const int32_t> tokens,
                                         int64_t past) {
    std::vector<int32_t> positions;
    fill_positions(config, tokens, past, positions);
    return positions;
}

}  // namespace refold
