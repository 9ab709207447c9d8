// Linear least squares with many rows: only Gram matrices are kept, in float64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refold {

struct Ridged;

// Rows (x, y) that a linear map W [outputs x inputs] shall take from x to y.
class LeastSquares {
public:
    LeastSquares(int64_t inputs, int64_t outputs);

    // `rows` more rows: x [rows x inputs], y [rows x outputs], both row major. Throws Error(input) when a sum
    // is not finite.
    void add(int64_t rows, const float* x, const float* y);
    void add(const LeastSquares& other);
    // The rows of all processes of group() together, in all of them.
    void sum_over_processes();

    // W [outputs x inputs], row major, that minimises
    //   sum over rows of |W x - y|^2 + ridge * (mean of the diagonal of sum x x^T) * |W - prior|^2
    // Throws Error(input) when the normal equations have no stable solution: raise the ridge.
    std::vector<float> solve(double ridge, std::span<const float> prior) const;
    // Mean over all rows of |W x - y|^2.
    double error(std::span<const float> weights) const;
    // The best map of rank at most `rank` for a W that solve() gave: the leading singular directions of its
    // outputs, W = U V with U [outputs x rank] and V [rank x inputs] (reduced-rank regression).
    struct LowRankMap {
        std::vector<float> u, v;
    };
    LowRankMap reduce(std::span<const float> weights, int64_t rank) const;

    // Sum of x x^T [inputs x inputs].
    std::span<const double> gram() const { return gram_; }
    int64_t rows() const { return rows_; }
    int64_t inputs() const { return inputs_; }
    int64_t outputs() const { return outputs_; }

private:
    friend Ridged solve_with_held_out(const LeastSquares&, const LeastSquares&, std::span<const float>,
                                      double);
    // Half of the negative gradient at the prior [outputs x inputs]: cross - prior gram.
    std::vector<double> descent(std::span<const float> prior) const;
    std::vector<float> solve(double ridge, std::span<const float> prior, std::vector<double> descent) const;

    int64_t inputs_, outputs_, rows_ = 0;
    std::vector<double> gram_;   // inputs x inputs, both triangles
    std::vector<double> cross_;  // outputs x inputs: sum of y x^T
    double squares_ = 0;         // sum of |y|^2
};

// A ridge chosen on held-out rows, walking downhill from `start` in half decades, and the map that it gives.
struct Ridged {
    double ridge = 0;
    double error_before = 0, error_after = 0;  // mean on held-out rows: of the prior, of the map
    std::vector<float> weights;                // solved with the rows of both
};
// The prior itself, ridge infinite, when nothing is better on held-out rows.
Ridged solve_with_held_out(const LeastSquares& fit, const LeastSquares& held_out,
                           std::span<const float> prior, double start = 1e-2);

}  // namespace refold
