// Kernels over rows of factors for few tokens: GEMV with a matrix, or with its transpose.
#pragma once

#include <cstddef>
#include <cstdint>

namespace refold::kernels {

enum class Element { f32, f16, bf16, q8_0 };

// `count` rows of `columns` numbers (Q8_0: whole blocks), `stride` bytes apart.
struct Rows {
    const void* data;
    size_t stride;
    int64_t count, columns;
    Element element;
};

// y[t][i] += <row i, x[t]>, for `tokens` tokens: x [tokens][columns] and y [tokens][count], rows x_stride and
// y_stride floats apart.
void add_products(const Rows& rows, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                  int64_t tokens);

// y[t] += sum over rows i of x[t][i] * row i: x [tokens][count], y [tokens][columns].
void add_weighted_rows(const Rows& rows, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                       int64_t tokens);

}  // namespace refold::kernels
