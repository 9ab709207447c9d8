#pragma once

#include <span>

namespace refold {

// log(sum(exp(x))) of float32 logits, SIMD, sums in float64.
double log_sum_exp(std::span<const float> x);

}  // namespace refold
