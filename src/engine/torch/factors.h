// Products with weights made of factors, and the weights themselves: model/materialise.cpp in differentiable
// torch operations. All tensors are in torch's order of dimensions, the reverse of ggml's.
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
    // x [tokens, in] -> [tokens, out] by way of the rank.
    at::Tensor product(const at::Tensor& x) const;
    // Multiply-adds of the product, by factors or by the matrix, which has to be made first.
    int64_t factored_cost(int64_t tokens) const;
    int64_t reconstructed_cost(int64_t tokens) const;
};

// W_h = U2^T S_h U1 of all heads, below each other, or transposed beside each other.
struct TuckerFactors {
    at::Tensor slices;  // S [heads, R2, R1]: the core of one role, see tucker_slices()
    at::Tensor model;   // U1 [R1, features]
    at::Tensor head;    // U2 [R2, width of a head]
    bool transposed = false;

    at::Tensor matrix() const;
    // Where the factors are applied first: of x [tokens, features], what slots of one input have in common
    // [tokens, R1]. Not for transposed ones.
    at::Tensor projection(const at::Tensor& x) const;
    // The rest of the product, from the projection, or from x [tokens, heads * width] when transposed.
    at::Tensor product(const at::Tensor& x) const;
    int64_t factored_cost(int64_t tokens) const;
    int64_t reconstructed_cost(int64_t tokens) const;
};

// The sum over c of roles[c, role] core[:, c], for `heads` heads: the mean of neighbours where the core
// [core heads, R3, R2, R1] has more.
at::Tensor tucker_slices(const at::Tensor& core, const at::Tensor& roles, int64_t role, int64_t heads);
// U2 of heads in halves with its rows in pairs: see rotary_row().
at::Tensor paired(const at::Tensor& head);

}  // namespace refold
