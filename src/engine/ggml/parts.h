// Products with a weight that consists of parts of several resident tensors (shared heads), without copying
// it.
#pragma once

#include <span>

#include "engine/ggml/weights.h"

namespace refold::parts {

// Whether this build of ggml has the product of eight interleaved Q4_0 rows and this CPU uses that layout.
bool has_q4_0x8();

// Up to this many tokens the parts are multiplied where they are; from then on gathering them into scratch
// and one large product costs less.
constexpr int64_t kInPlaceTokens = 4;

// Custom operation of a graph: dst [out, tokens] = W src0 [in, tokens]; `plan` is a const LinearPlan*.
void multiply_in_place(ggml_tensor* dst, int thread, int threads, void* plan);

// Custom operation: copies the parts into plan->scratch (dst is a view of it); src1 only orders it after x.
void gather(ggml_tensor* dst, int thread, int threads, void* plan);

// One row of an interleaved Q4_0 table as floats.
void dequantise_q4_0x8_row(const std::byte* table, int64_t row, std::span<float> out);

}  // namespace refold::parts
