// Linear maps of low rank that err least on the inputs that they have: y = W x, with the sum of x x^T given
// as Gram matrix [inputs x inputs] in float64. Matrices are row major.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refold {

struct LowRankMap {
    std::vector<float> u;  // [outputs x rank], orthonormal columns
    std::vector<float> v;  // [rank x inputs]
};

// The best map U V of rank at most `rank` (clipped to inputs and outputs) in place of W [outputs x inputs]:
// it minimizes the sum of |W x - U V x|^2. With S S^T = gram it is the truncated singular value decomposition
// of W S, times S^-1 (SVD-LLM, arXiv 2403.07378, section 3.1; reduced-rank regression). U holds the leading
// left singular vectors and V = U^T W, so that S is never inverted and a singular Gram matrix does no harm.
// Throws Error(input) when the Gram matrix is not that of finite inputs.
LowRankMap reduce_rank(std::span<const double> gram, int64_t inputs, std::span<const float> weights,
                       int64_t rank);

// Squares of all min(inputs, outputs) singular values of W S, descending. Their sum from `rank` on is the
// error of reduce_rank(), their whole sum that of |W x|^2.
std::vector<double> output_energies(std::span<const double> gram, int64_t inputs,
                                    std::span<const float> weights);

// The sum of |W x|^2.
double output_energy(std::span<const double> gram, int64_t inputs, std::span<const float> weights);

// The U [outputs x rank] that minimizes the sum of |W x - U V x|^2 for a given V [rank x inputs].
std::vector<float> factor_for(std::span<const double> gram, int64_t inputs, std::span<const float> weights,
                              std::span<const float> v);

// U V [outputs x inputs].
std::vector<float> product_of(const LowRankMap& map, int64_t inputs);

}  // namespace refold
