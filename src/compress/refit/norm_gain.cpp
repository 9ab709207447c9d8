#include "compress/refit/norm_gain.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/group.h"

namespace refold {

GainSquares::GainSquares(int64_t width)
    : normed_(static_cast<size_t>(width)), cross_(normed_.size()), wanted_(normed_.size()) {}

void GainSquares::add(std::span<const float> normed, std::span<const float> wanted) {
    const size_t width = normed_.size();
    for (size_t i = 0; i < normed.size(); ++i) {
        const double n = normed[i], y = wanted[i];
        normed_[i % width] += n * n;
        cross_[i % width] += n * y;
        wanted_[i % width] += y * y;
    }
    const size_t rows = normed.size() / width;
    rows_ += static_cast<double>(rows);
    for (size_t c = 0; c < width; ++c) {
        if (!std::isfinite(normed_[c] + cross_[c] + wanted_[c]))
            fail(ErrorCode::input, "least squares", "a sum over the rows of a norm is not finite");
    }
}

void GainSquares::add(const GainSquares& other) {
    const auto sum = [](std::vector<double>& to, const std::vector<double>& from) {
        for (size_t c = 0; c < to.size(); ++c) to[c] += from[c];
    };
    sum(normed_, other.normed_);
    sum(cross_, other.cross_);
    sum(wanted_, other.wanted_);
    rows_ += other.rows_;
}

void GainSquares::sum_over_processes() {
    group().sum(normed_);
    group().sum(cross_);
    group().sum(wanted_);
    group().sum({&rows_, 1});
}

std::vector<float> GainSquares::solve(double ridge, std::span<const float> prior) const {
    const double weight =
        ridge * std::accumulate(normed_.begin(), normed_.end(), 0.0) / static_cast<double>(normed_.size());
    std::vector<float> gain(prior.begin(), prior.end());
    for (size_t c = 0; c < gain.size(); ++c) {
        // A channel that is always zero keeps its gain.
        if (const double divisor = normed_[c] + weight; divisor > 0)
            gain[c] = static_cast<float>((cross_[c] + weight * static_cast<double>(prior[c])) / divisor);
    }
    return gain;
}

double GainSquares::error(std::span<const float> gain) const {
    double sum = 0;
    for (size_t c = 0; c < normed_.size(); ++c) {
        const double g = gain[c];
        sum += wanted_[c] - 2 * g * cross_[c] + g * g * normed_[c];
    }
    return rows_ > 0 ? sum / rows_ : 0;
}

RidgedGain solve_gain(const GainSquares& fit, const GainSquares& held_out, std::span<const float> prior) {
    constexpr double kRidges[] = {0, 1e-3, 1e-2, 0.1, 1, 10};
    RidgedGain out{std::numeric_limits<double>::infinity(),
                   held_out.error(prior),
                   held_out.error(prior),
                   {prior.begin(), prior.end()}};
    for (const double ridge : kRidges) {
        if (const double error = held_out.error(fit.solve(ridge, prior)); error < out.error_after) {
            out.error_after = error;
            out.ridge = ridge;
        }
    }
    if (std::isfinite(out.ridge)) {
        GainSquares all = fit;
        all.add(held_out);
        out.gain = all.solve(out.ridge, prior);
    }
    return out;
}

}  // namespace refold
