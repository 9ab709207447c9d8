// Frequencies of the rotary position embedding (RoPE).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace refold {

// Angle per position of each pair [dims / 2], in a sequence of `length` tokens. `divisors` [dims / 2] divide
// the angles of each pair; empty: all 1.
std::vector<double> rotation_frequencies(const Rope& rope, int64_t length, std::span<const float> divisors);

// What a rotation multiplies the length of a pair by.
double rotation_magnitude(const Rope& rope);

}  // namespace refold
