// Rounding a matrix to a quantized type with little error for given inputs (GPTQ).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/dtype.h"

namespace refold {

// The inputs that a map is rounded for.
struct RoundingInputs {
    std::span<const double> gram;  // [inputs x inputs]: sum of x x^T
    int64_t inputs = 0;            // of the map
    int64_t rounded = 0;           // so many first inputs; others (a bias) stay exact
};

struct Rounded {
    std::vector<float> values;      // [outputs x inputs], row major
    std::vector<std::byte> packed;  // the rounded columns in the type, rows folded where they need to be
};

// W [outputs x inputs], row major, with its first `rounded` columns rounded to values of `type`, which is not
// a float type. Columns are rounded one after the other, and each one corrects the error that the columns
// before make in the outputs, as far as their inputs are correlated (GPTQ, Frantar et al. 2023, equations 2
// and 3, here as successive rounding with a Cholesky factor of the Gram matrix). The scales of a block are
// chosen when its first column is reached, by llama.cpp's weighted search; a column's weight is the part of
// the error that later columns cannot correct. Types without a BlockGrid are rounded block by block: errors
// are corrected between blocks only. Rows that are no whole blocks are folded (io/dtype.h): `outputs` must be
// a multiple of fold().
Rounded gptq_rounded(std::span<const float> weights, const RoundingInputs& inputs, DType type);

// W rounded to nearest with ggml's search for scales, weighted by the mean squares of the inputs (llama.cpp's
// importance matrix) unless these are empty.
Rounded nearest_rounded(std::span<const float> weights, const RoundingInputs& inputs, DType type,
                        int threads = 1);

}  // namespace refold
