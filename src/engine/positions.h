// Positions of a sequence's tokens.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "model/config.h"

namespace refold {

// RoBERTa counts positions from padding_token + 1 and gives padding the position padding_token.
inline std::vector<int32_t> positions_of(const ModelConfig& config, std::span<const int32_t> tokens,
                                         int64_t past) {
    std::vector<int32_t> positions(tokens.size());
    if (!config.padding_token) {
        std::iota(positions.begin(), positions.end(), static_cast<int32_t>(past));
        return positions;
    }
    int32_t next = *config.padding_token;
    for (size_t t = 0; t < tokens.size(); ++t)
        positions[t] = tokens[t] == *config.padding_token ? *config.padding_token : ++next;
    return positions;
}

}  // namespace refold
