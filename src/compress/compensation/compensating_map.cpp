#include "compress/compensation/compensating_map.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/group.h"
#include "linalg/blas.h"
#include "linalg/pseudo_inverse.h"
#include "linalg/reduced_rank.h"

namespace refold {
namespace {

using Floats = std::vector<float>;

// a (m x k) b (k x n), row major.
Floats product(const Floats& a, const Floats& b, int64_t m, int64_t k, int64_t n) {
    Floats c(static_cast<size_t>(m * n));
    blas::multiply(blas::Op::plain, blas::Op::plain, {n, m, k}, b.data(), a.data(), c.data());
    return c;
}

}  // namespace

CompensatingMap::CompensatingMap(const MapSettings& settings, int64_t length)
    : settings_(settings),
      length_(length),
      fit_(settings.inputs, settings.outputs),
      held_out_(settings.inputs, settings.outputs) {
    if (settings.averages == 0) return;
    const auto positions = static_cast<size_t>(settings.averages * length),
               inputs = static_cast<size_t>(settings.inputs), outputs = static_cast<size_t>(settings.outputs);
    fit_means_ = {std::vector<double>(positions * inputs), std::vector<double>(positions * outputs),
                  std::vector<double>(positions)};
    held_out_means_ = fit_means_;
}

void CompensatingMap::add(bool held_out, int64_t tokens, std::span<const float> x, std::span<const float> e,
                          int64_t average) {
    (held_out ? held_out_ : fit_).add(tokens, x.data(), e.data());
    if (settings_.averages == 0) return;
    Means& means = held_out ? held_out_means_ : fit_means_;
    const auto first = static_cast<size_t>(average * length_), inputs = static_cast<size_t>(settings_.inputs),
               outputs = static_cast<size_t>(settings_.outputs);
    for (size_t i = 0; i < x.size(); ++i) means.x[first * inputs + i] += static_cast<double>(x[i]);
    for (size_t i = 0; i < e.size(); ++i) means.e[first * outputs + i] += static_cast<double>(e[i]);
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) means.count[first + t] += 1;
}

void CompensatingMap::sum_over_processes() {
    for (LeastSquares* sums : {&fit_, &held_out_}) sums->sum_over_processes();
    for (Means* means : {&fit_means_, &held_out_means_})
        for (std::vector<double>* sums : {&means->x, &means->e, &means->count}) group().sum(*sums);
}

void CompensatingMap::put_before(Floats output) { output_ = std::move(output); }

Floats CompensatingMap::of_averages(bool with_held_out) const {
    constexpr double kSmallest = 1e-10;
    Means all = fit_means_;
    const auto add = [](std::vector<double>& to, const std::vector<double>& from) {
        for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    };
    if (with_held_out) {
        add(all.x, held_out_means_.x);
        add(all.e, held_out_means_.e);
        add(all.count, held_out_means_.count);
    }
    const auto inputs = static_cast<size_t>(settings_.inputs),
               outputs = static_cast<size_t>(settings_.outputs);
    const auto row = [](const std::vector<double>& sums, size_t at, size_t width, double count,
                        std::vector<double>& to) {
        for (size_t i = at * width; i < (at + 1) * width; ++i) to.push_back(sums[i] / count);
    };
    std::vector<double> x, e;
    for (size_t at = 0; at < all.count.size(); ++at) {
        if (all.count[at] == 0) continue;  // no sequence reaches this position
        row(all.x, at, inputs, all.count[at], x);
        row(all.e, at, outputs, all.count[at], e);
    }
    const auto w = solve_minimum_norm(static_cast<int64_t>(x.size() / inputs), settings_.inputs,
                                      settings_.outputs, x, e, {.absolute = kSmallest});
    return {w.begin(), w.end()};
}

// Zero for an infinite ridge.
Floats CompensatingMap::dense(const LeastSquares& sums, double ridge, bool with_held_out) const {
    if (settings_.averages > 0) return of_averages(with_held_out);
    Floats zeros(static_cast<size_t>(settings_.inputs * settings_.outputs));
    return std::isfinite(ridge) ? sums.solve(ridge, zeros) : zeros;
}

// pinv(W_o) times `weights` [outputs x columns].
Floats CompensatingMap::before_output(const Floats& weights, int64_t columns) const {
    const auto inner = static_cast<int64_t>(output_.size()) / settings_.outputs;
    const std::vector<double> x(output_.begin(), output_.end()), y(weights.begin(), weights.end());
    // Smaller singular values of float32 weights are rounding errors.
    const auto solved = solve_minimum_norm(settings_.outputs, inner, columns, x, y, {.relative = 1e-6});
    Floats out(solved.size());
    for (int64_t c = 0; c < columns; ++c) {
        for (int64_t i = 0; i < inner; ++i)
            out[static_cast<size_t>(i * columns + c)] =
                static_cast<float>(solved[static_cast<size_t>(c * inner + i)]);
    }
    return out;
}

CompensatingMap::Map CompensatingMap::reduced(const LeastSquares& sums, Floats weights) const {
    const bool before = !output_.empty();
    if (settings_.rank == 0)
        return {before ? before_output(weights, settings_.inputs) : std::move(weights), {}, {}};
    auto map = reduce_rank(sums.gram(), sums.inputs(), weights, settings_.rank);
    return {{}, before ? before_output(map.u, settings_.rank) : std::move(map.u), std::move(map.v)};
}

// The map from x to what is added to the residual stream: [outputs x inputs].
Floats CompensatingMap::effective(const Map& map) const {
    const int64_t rank = settings_.rank, in = settings_.inputs, out = settings_.outputs;
    if (output_.empty()) return rank == 0 ? map.weights : product(map.u, map.v, out, rank, in);
    const auto inner = static_cast<int64_t>(output_.size()) / out;
    return product(output_, rank == 0 ? map.weights : product(map.u, map.v, inner, rank, in), out, inner, in);
}

SolvedMap CompensatingMap::solve() const {
    const Floats zeros(static_cast<size_t>(settings_.inputs * settings_.outputs));
    SolvedMap out;
    if (settings_.averages == 0)
        out.ridge = settings_.ridge ? *settings_.ridge : solve_with_held_out(fit_, held_out_, zeros).ridge;
    const Floats without = effective(reduced(fit_, dense(fit_, out.ridge, false)));
    out.fit_before = fit_.error(zeros);
    out.fit_after = fit_.error(without);
    out.held_out_before = held_out_.error(zeros);
    out.held_out_after = held_out_.error(without);
    LeastSquares all = fit_;
    all.add(held_out_);
    Map map = reduced(all, dense(all, out.ridge, true));
    out.weights = std::move(map.weights);
    out.u = std::move(map.u);
    out.v = std::move(map.v);
    return out;
}

Array figures_of(const SolvedMap& map) {
    Array out{{5}, {}};
    for (const double x : {map.ridge, map.fit_before, map.fit_after, map.held_out_before, map.held_out_after})
        out.values.push_back(static_cast<float>(x));
    return out;
}

nlohmann::json figures_to_json(std::span<const float> figures) {
    return {{"ridge", std::isfinite(figures[0]) ? nlohmann::json(figures[0]) : nlohmann::json("infinite")},
            {"fit_before", figures[1]},
            {"fit_after", figures[2]},
            {"held_out_before", figures[3]},
            {"held_out_after", figures[4]}};
}

}  // namespace refold
