// Singular value decompositions of weight matrices. Matrices are row major [rows x cols].
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refold {

struct Svd {
    int64_t rank = 0;
    std::vector<float> u;       // rows x rank, orthonormal columns
    std::vector<double> s;      // rank, descending
    std::vector<float> v;       // rank x cols: the transposed right singular vectors, orthonormal rows
    double relative_error = 0;  // Frobenius norm of (matrix - U S V) / Frobenius norm of the matrix
};

// The best approximation of `rank` (clipped to min(rows, cols)), from the Gram matrix of the smaller side in
// float64. Singular values are exact to about 1e-7 of the largest one; vectors of smaller ones are arbitrary,
// but keep U and V orthonormal. Throws Error(input) when the matrix is not finite or its size is not rows x
// cols, Error(usage) for a rank below 1.
Svd truncated_svd(std::span<const float> matrix, int64_t rows, int64_t cols, int64_t rank);

// All singular values, descending.
std::vector<double> singular_values(std::span<const float> matrix, int64_t rows, int64_t cols);

// Smallest rank, at least 1, whose singular values hold the fraction `energy` (0 to 1) of the sum of squares.
int64_t rank_for_energy(std::span<const double> singular_values, double energy);

// Randomized SVD with power iterations (Halko, Martinsson and Tropp 2011, algorithms 4.4 and 5.1), without
// oversampling, as LASER's published code does with torch.svd_lowrank(q = rank, niter = iterations).
Svd randomized_svd(std::span<const float> matrix, int64_t rows, int64_t cols, int64_t rank, int iterations,
                   uint64_t seed);

}  // namespace refold
