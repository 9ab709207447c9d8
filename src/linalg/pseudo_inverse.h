// Minimum-norm least squares by the singular value decomposition, in float64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refold {

// Singular values that count: those above both.
struct SingularCut {
    double absolute = 0;
    double relative = 0;  // of the largest one
};

// W [outputs x inputs], row major, of the smallest norm among those that minimise the sum over rows of
// |W x - y|^2: W^T = pinv(X) Y with X [rows x inputs] and Y [rows x outputs], both row major. Throws
// Error(input) for sizes that do not fit and for numbers that are not finite.
std::vector<double> solve_minimum_norm(int64_t rows, int64_t inputs, int64_t outputs,
                                       std::span<const double> x, std::span<const double> y,
                                       const SingularCut& cut);

}  // namespace refold
