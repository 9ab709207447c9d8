// Products with a weight that consists of parts of several resident tensors (shared heads), without copying
// it.
#pragma once

#include <span>
#include <utility>

#include "engine/ggml/plan.h"

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

// Rows that lie together in memory, and the bytes of `columns` of such a row group.
int64_t rows_per_group(Layout layout);
size_t group_bytes(ggml_type type, Layout layout, int64_t columns);
// The type in which the kernels of a weight's type want their input.
ggml_type input_type(ggml_type type, Layout layout);

// Splits [0, count) evenly; returns this thread's range.
std::pair<int64_t, int64_t> share_of(int64_t count, int thread, int threads);

// Row groups of `in` columns times one token's input in input_type(), added to or written into `y`.
struct RowProduct {
    ggml_type type;
    Layout layout;
    int64_t in;

    // `weights` points at the first row group, `stride` bytes apart from the next.
    void operator()(const std::byte* weights, size_t stride, const std::byte* x, int64_t groups, float* y,
                    bool add) const;
};

// One row of an interleaved Q4_0 table as floats.
void dequantise_q4_0x8_row(const std::byte* table, int64_t row, std::span<float> out);

}  // namespace refold::parts
