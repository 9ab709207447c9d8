// Scales and codes of the blocks of quantized types, by the searches of ggml (ggml-quants.c), for as many
// blocks side by side as a vector has lanes: with the same operations in the same order, so that the numbers
// are ggml's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "io/dtype.h"

namespace refold {

// Q4_0 to Q5_1, Q2_K to Q6_K, IQ4_NL and IQ4_XS. The other types of ggml search for nothing, or in grids of
// several elements at once.
bool has_block_search(DType type);

// Packs rows of `row_elements` values, whole blocks, into `packed`. `importance` [row_elements] weighs the
// squared errors of the columns. Blocks of Q4_0 to Q5_1 take plain rounding where its weighted error is
// smaller: the search weighs the errors of large weights more as well, so it may miss the better of the two.
void search_blocks(DType type, std::span<const float> values, size_t row_elements,
                   std::span<const float> importance, std::span<std::byte> packed);

}  // namespace refold
