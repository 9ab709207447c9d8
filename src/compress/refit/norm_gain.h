// The gain of a norm by least squares, channel by channel.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refold {

struct RidgedGain;

// Sums over rows: n (normed, without gain) and y, where the gain g should make g_c n_c = y_c in each channel
// c.
class GainSquares {
public:
    explicit GainSquares(int64_t width);

    // Whole rows of both, row major. Throws Error(input) when a sum is not finite.
    void add(std::span<const float> normed, std::span<const float> wanted);
    void add(const GainSquares& other);
    // Sums over the rows of all processes of group().
    void sum_over_processes();

    // The g that minimizes sum over rows of |g n - y|^2 + ridge * (mean over channels of sum n^2) * |g -
    // prior|^2.
    std::vector<float> solve(double ridge, std::span<const float> prior) const;
    // Mean over all rows of |g n - y|^2.
    double error(std::span<const float> gain) const;

private:
    std::vector<double> normed_, cross_, wanted_;  // by channel: sums of n^2, n y, y^2
    double rows_ = 0;
};

// The gain with the ridge that is best on held-out rows, solved with all rows. The prior, with an infinite
// ridge, when nothing is better.
struct RidgedGain {
    double ridge = 0;
    double error_before = 0, error_after = 0;  // mean over held-out rows, with the prior and with the gain
    std::vector<float> gain;
};
RidgedGain solve_gain(const GainSquares& fit, const GainSquares& held_out, std::span<const float> prior);

}  // namespace refold
