// Factored weights and products with them in differentiable torch operations; see model/materialize.cpp for
// the reference. Shapes are in torch's order of dimensions, the reverse of ggml's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace refold {

// W = U diag(scale) V, or its transpose.
struct LowRankFactors {
    at::Tensor u;      // [out, rank]
    at::Tensor v;      // [rank, in]
    at::Tensor scale;  // [rank]; undefined: ones
    bool transposed = false;

    at::Tensor matrix() const;
    // x [tokens, in] times the factors, one after the other: [tokens, out].
    at::Tensor product(const at::Tensor& x) const;
    // Multiply-adds of the product by factors, and by the matrix including its computation.
    int64_t factored_cost(int64_t tokens) const;
    int64_t reconstructed_cost(int64_t tokens) const;
};

// W = the rows of W_h = U2^T S_h U1 of all heads h; transposed: the columns of W_h^T.
struct TuckerFactors {
    at::Tensor slices;  // S [heads, R2, R1]: the core of one role, see tucker_slices()
    at::Tensor model;   // U1 [R1, features]
    at::Tensor head;    // U2 [R2, width of a head]
    bool transposed = false;

    at::Tensor matrix() const;
    // x [tokens, features] times U1^T: [tokens, R1], which slots with the same x and U1 share. Not if
    // transposed.
    at::Tensor projection(const at::Tensor& x) const;
    // The rest of the product. x is the projection, or [tokens, heads * width] if transposed.
    at::Tensor product(const at::Tensor& x) const;
    int64_t factored_cost(int64_t tokens) const;
    int64_t reconstructed_cost(int64_t tokens) const;
};

// Slices [heads, R2, R1] of one role: the sum over c of roles[c, role] core[:, c]. Where the core [core
// heads, R3, R2, R1] has more heads, each slice is the mean of neighboring heads.
at::Tensor tucker_slices(const at::Tensor& core, const at::Tensor& roles, int64_t role, int64_t heads);
// Reorders U2 [R2, width] from (first half, second half) to rotary pairs: see rotary_row().
at::Tensor paired(const at::Tensor& head);

}  // namespace refold
