#include "linalg/least_squares.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/group.h"
#include "linalg/blas.h"
#include "linalg/device.h"

namespace refold {

// A row-major [m x n] matrix is BLAS's column-major n x m one.
using blas::Op;

LeastSquares::LeastSquares(int64_t inputs, int64_t outputs)
    : inputs_(inputs), outputs_(outputs), sums_(inputs, outputs) {}

void LeastSquares::add(int64_t rows, const float* x, const float* y) {
    sums_.add(rows, x, y);
    squares_ += blas::energy({y, static_cast<size_t>(rows * outputs_)}, "activations");
    rows_ += rows;
}

void LeastSquares::add(const LeastSquares& other) {
    const auto add_to = [](std::vector<double>& sums, const std::vector<double>& added) {
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += added[i];
    };
    add_to(sums_.gram(), other.sums_.gram());
    add_to(sums_.cross(), other.sums_.cross());
    squares_ += other.squares_;
    rows_ += other.rows_;
}

LeastSquares LeastSquares::with_inputs(std::span<const int64_t> some) const {
    LeastSquares out(static_cast<int64_t>(some.size()), outputs_);
    const auto pick = [&](const std::vector<double>& from, size_t row, double* to) {
        for (const int64_t i : some)
            *to++ = from[row * static_cast<size_t>(inputs_) + static_cast<size_t>(i)];
    };
    for (size_t i = 0; i < some.size(); ++i)
        pick(sums_.gram(), static_cast<size_t>(some[i]), out.sums_.gram().data() + i * some.size());
    for (size_t o = 0; o < static_cast<size_t>(outputs_); ++o)
        pick(sums_.cross(), o, out.sums_.cross().data() + o * some.size());
    out.squares_ = squares_;
    out.rows_ = rows_;
    return out;
}

void LeastSquares::sum_over_processes() {
    double others[] = {squares_, static_cast<double>(rows_)};
    group().sum(sums_.gram());
    group().sum(sums_.cross());
    group().sum(others);
    squares_ = others[0];
    rows_ = static_cast<int64_t>(others[1]);
}

std::vector<double> LeastSquares::descent(std::span<const float> prior) const {
    const std::vector<double> from(prior.begin(), prior.end());
    std::vector<double> out = sums_.cross();
    blas::multiply(Op::plain, Op::plain, {inputs_, outputs_, inputs_}, sums_.gram().data(), from.data(),
                   out.data(), 1, -1);
    return out;
}

std::vector<float> LeastSquares::solve(double ridge, std::span<const float> prior) const {
    return solve(ridge, prior, descent(prior));
}

// W = prior + descent (gram + ridge)^-1.
std::vector<float> LeastSquares::solve(double ridge, std::span<const float> prior,
                                       std::vector<double> step) const {
    const size_t n = static_cast<size_t>(inputs_);
    const std::vector<double>& gram = sums_.gram();
    double mean = 0;
    for (size_t i = 0; i < n; ++i) mean += gram[i * (n + 1)] / static_cast<double>(n);
    if (!blas::solve_shifted(inputs_, outputs_, gram.data(), ridge * mean, step.data()))
        fail(ErrorCode::input, "least squares",
             "the normal equations of {} inputs from {} rows have no stable solution at ridge {} - raise "
             "it, or give more text",
             inputs_, rows_, ridge);
    std::vector<float> weights(step.size());
    for (size_t i = 0; i < step.size(); ++i)
        weights[i] = static_cast<float>(static_cast<double>(prior[i]) + step[i]);
    return weights;
}

double LeastSquares::error(std::span<const float> weights) const {
    if (rows_ == 0) return 0;
    const std::vector<double> w(weights.begin(), weights.end());
    std::vector<double> product(w.size());
    blas::multiply(Op::plain, Op::plain, {inputs_, outputs_, inputs_}, sums_.gram().data(), w.data(),
                   product.data());
    const std::vector<double>& cross = sums_.cross();
    double sum = squares_;
    for (size_t i = 0; i < w.size(); ++i) sum += w[i] * (product[i] - 2 * cross[i]);
    return std::max(0.0, sum) / static_cast<double>(rows_);
}

double LeastSquares::error(std::span<const float> weights, std::span<const double> descent) const {
    if (rows_ == 0) return 0;
    const std::vector<double>& cross = sums_.cross();
    double sum = squares_;  // weights gram = cross - descent
    for (size_t i = 0; i < weights.size(); ++i)
        sum -= static_cast<double>(weights[i]) * (cross[i] + descent[i]);
    return std::max(0.0, sum) / static_cast<double>(rows_);
}

Ridged solve_with_held_out(const LeastSquares& fit, const LeastSquares& held_out,
                           std::span<const float> prior, double start) {
    constexpr int kMost = 12;
    const blas::Kept kept_fit(fit.gram()), kept_held_out(held_out.gram());
    const double factor = std::sqrt(10.0);
    const std::vector<double> descent = fit.descent(prior), of_held_out = held_out.descent(prior);
    const double before = held_out.error(prior, of_held_out);
    // Infinite when the ridge is too small for a solution.
    const auto error_at = [&](double ridge) {
        try {
            return held_out.error(fit.solve(ridge, prior, descent));
        } catch (const Error&) {
            return std::numeric_limits<double>::infinity();
        }
    };
    double ridge = start, error = error_at(start);
    for (int i = 0; i < kMost && !std::isfinite(error); ++i) error = error_at(ridge *= factor);
    const auto walk = [&](double by) {
        bool moved = false;
        for (int i = 0; i < kMost; ++i, moved = true) {
            const double next = error_at(ridge * by);
            if (next >= error) break;
            ridge *= by;
            error = next;
        }
        return moved;
    };
    if (!walk(1 / factor)) walk(factor);
    if (error >= before)
        return {std::numeric_limits<double>::infinity(), before, before, {prior.begin(), prior.end()}};
    LeastSquares all = fit;
    all.add(held_out);
    std::vector<double> of_all = descent;
    for (size_t i = 0; i < of_all.size(); ++i) of_all[i] += of_held_out[i];
    return {ridge, before, error, all.solve(ridge, prior, std::move(of_all))};
}

}  // namespace refold
