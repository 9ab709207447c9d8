// Products with a weight whose rows or columns come in runs from several resident matrices (shared heads),
// and the row layouts that they read.
#pragma once

#include <span>

#include "engine/ggml/linear_plan.h"

namespace refold::head_runs {

// Whether this build of ggml has the kernel for eight interleaved Q4_0 rows and this CPU uses that layout.
bool has_q4_0x8();

// Custom ggml operation: dst F32 [out, tokens] = W src0, src0 F32 [in, tokens]. `plan` is a const LinearPlan*
// of kind `runs`. Whatever the number of tokens, a result is the same.
void multiply_in_place(ggml_tensor* dst, int thread, int threads, void* plan);

// weight * x: F32 [rows, tokens], of rows in Layout::plain; x F32 [columns, tokens]. As multiply_in_place().
ggml_tensor* multiply_rows(ggml_context* context, ggml_tensor* weight, ggml_tensor* x);

// A row group is the rows that lie interleaved in memory: their number, and the bytes of `columns` columns of
// a group.
int64_t rows_per_group(Layout layout);
size_t group_bytes(ggml_type type, Layout layout, int64_t columns);
// The type into which activations are quantized for the kernels of a weight type.
ggml_type input_type(ggml_type type, Layout layout);

// Product of row groups of `in` columns and one token in input_type(), written to y or added to it.
struct RowProduct {
    ggml_type type;
    Layout layout;
    int64_t in;

    // `weights`: `groups` row groups, `stride` bytes apart. y [groups * rows_per_group(layout)].
    void operator()(const std::byte* weights, size_t stride, const std::byte* x, int64_t groups, float* y,
                    bool add) const;
};

// Dequantizes one row of a table in layout q4_0x8; out.size() is its number of columns.
void dequantize_q4_0x8_row(const std::byte* table, int64_t row, std::span<float> out);

}  // namespace refold::head_runs
