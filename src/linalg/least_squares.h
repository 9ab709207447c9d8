// Linear least squares with many rows. Keeps only Gram matrices, in float64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "linalg/product_sums.h"

namespace refold {

struct Ridged;

// Collects rows (x, y) and solves for a linear map W [outputs x inputs] from x to y.
class LeastSquares {
public:
    // Without outputs, only the Gram matrix is collected; add() ignores y.
    LeastSquares(int64_t inputs, int64_t outputs);

    // Adds rows x [rows x inputs] and y [rows x outputs], both row major. Throws Error(input) when a sum is
    // not finite.
    void add(int64_t rows, const float* x, const float* y);
    void add(const LeastSquares& other);
    // The same rows with these inputs alone.
    LeastSquares with_inputs(std::span<const int64_t> some) const;
    // Sums over all processes of group(), so that each has the rows of all.
    void sum_over_processes();

    // The W [outputs x inputs], row major, that minimizes
    //   sum over rows of |W x - y|^2 + ridge * (mean of the diagonal of sum x x^T) * |W - prior|^2
    // Throws Error(input) when the ridge is too small for a stable solution.
    std::vector<float> solve(double ridge, std::span<const float> prior) const;
    // Mean over rows of |W x - y|^2.
    double error(std::span<const float> weights) const;
    // Sum of x x^T [inputs x inputs].
    std::span<const double> gram() const { return sums_.gram(); }
    int64_t rows() const { return rows_; }
    int64_t inputs() const { return inputs_; }
    int64_t outputs() const { return outputs_; }

private:
    friend Ridged solve_with_held_out(const LeastSquares&, const LeastSquares&, std::span<const float>,
                                      double);
    // Half the negative gradient at the prior, cross - prior gram [outputs x inputs].
    std::vector<double> descent(std::span<const float> prior) const;
    std::vector<float> solve(double ridge, std::span<const float> prior, std::vector<double> descent) const;
    // error() of weights whose descent is known.
    double error(std::span<const float> weights, std::span<const double> descent) const;

    int64_t inputs_, outputs_, rows_ = 0;
    ProductSums sums_;
    double squares_ = 0;  // sum of |y|^2
};

// The ridge chosen on held-out rows, and the map solved with it.
struct Ridged {
    double ridge = 0;
    double error_before = 0, error_after = 0;  // mean error on held-out rows: of the prior, of the map
    std::vector<float> weights;                // solved with the rows of both sets
};
// Walks downhill from `start` in half decades. Returns the prior with an infinite ridge when no map is better
// on the held-out rows.
Ridged solve_with_held_out(const LeastSquares& fit, const LeastSquares& held_out,
                           std::span<const float> prior, double start = 1e-2);

}  // namespace refold
