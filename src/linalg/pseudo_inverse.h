// Minimum-norm least squares by singular value decomposition, in float64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refold {

// Singular values at or below either bound count as zero.
struct SingularCut {
    double absolute = 0;
    double relative = 0;  // fraction of the largest singular value
};

// The W [outputs x inputs], row major, of smallest norm that minimizes the sum over rows of |W x - y|^2: W^T
// = pinv(X) Y with X [rows x inputs] and Y [rows x outputs], both row major. Throws Error(input) for sizes
// that do not fit and for values that are not finite.
std::vector<double> solve_minimum_norm(int64_t rows, int64_t inputs, int64_t outputs,
                                       std::span<const double> x, std::span<const double> y,
                                       const SingularCut& cut);

}  // namespace refold
