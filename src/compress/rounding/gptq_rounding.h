// Rounding a matrix to a quantized type with little error for given inputs (GPTQ).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "io/dtype.h"

namespace refold {

// The inputs that a map is rounded for.
struct RoundingInputs {
    std::span<const double> gram;  // [inputs x inputs]: sum of x x^T
    int64_t inputs = 0;            // of the map
    int64_t rounded = 0;  // so many first inputs, whole blocks of the type; others (a bias) stay exact
};

// W [outputs x inputs], row major, with its first `rounded` columns rounded to values of `type`. Blocks of
// columns are rounded one after the other; later blocks correct the error that a block makes in the outputs,
// as far as their inputs are correlated (GPTQ, Frantar et al. 2023, equation 3, by blocks of the type; here
// as successive rounding with a Cholesky factor of the Gram matrix). Quantizing the result to `type` gives
// the same values when a block's scale follows from its extremes (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0).
std::vector<float> gptq_rounded(std::span<const float> weights, const RoundingInputs& inputs, DType type);

}  // namespace refold
