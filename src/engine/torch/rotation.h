// Angles of the rotary position embedding (RoPE).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace refold {

struct Angles {
    std::vector<double> cosines, sines;  // [positions, dims / 2], times the magnitude of the rotation
};

// Angles of tokens at `positions` in a sequence of `length` tokens. `frequencies` [dims / 2] divide the
// angles of each pair; empty: all 1.
Angles rotation_angles(const Rope& rope, std::span<const int32_t> positions, int64_t length,
                       std::span<const float> frequencies);

}  // namespace refold
