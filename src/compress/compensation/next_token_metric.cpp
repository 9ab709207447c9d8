#include "compress/compensation/next_token_metric.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/group.h"
#include "linalg/blas.h"

namespace refold {
namespace {

constexpr int64_t kRows = 256;  // tokens whose logits are in memory at a time
}  // namespace

NextTokenMetric::NextTokenMetric(const Model& model) : output_(model) {
    probability_.resize(static_cast<size_t>(vocabulary()));
    means_.resize(width() * width());
}

float NextTokenMetric::scale(std::span<const float> residual) const { return output_.norm().scale(residual); }

void NextTokenMetric::add(std::span<const float> residuals) {
    const auto n = static_cast<int64_t>(width()), vocabulary = this->vocabulary();
    const auto rows = static_cast<int64_t>(residuals.size()) / n;
    std::vector<float> means;
    for (int64_t first = 0; first < rows; first += kRows) {
        const int64_t count = std::min(kRows, rows - first);
        std::vector<float> logits =
            output_.logits(residuals.subspan(static_cast<size_t>(first * n), static_cast<size_t>(count * n)));
        for (int64_t t = 0; t < count; ++t) {
            float* row = logits.data() + t * vocabulary;
            const float largest = *std::max_element(row, row + vocabulary);
            double sum = 0;
            for (int64_t i = 0; i < vocabulary; ++i)
                sum += static_cast<double>(row[i] = std::exp(row[i] - largest));
            const auto factor = static_cast<float>(1 / sum);
            for (int64_t i = 0; i < vocabulary; ++i) {
                row[i] *= factor;
                probability_[static_cast<size_t>(i)] += static_cast<double>(row[i]);
            }
        }
        means.resize(static_cast<size_t>(count * n));
        blas::multiply(blas::Op::plain, blas::Op::plain, {n, count, vocabulary}, output_.weights().data(),
                       logits.data(), means.data());
        const std::vector<double> wide(means.begin(), means.end());
        blas::multiply(blas::Op::plain, blas::Op::transposed, {n, n, count}, wide.data(), wide.data(),
                       means_.data(), 1.0);
    }
    tokens_ += static_cast<double>(rows);
}

// E[W^T (diag(p) - p p^T) W], and the norm's gain on both sides.
void NextTokenMetric::finish(double floor) {
    group().sum(probability_);
    group().sum(means_);
    group().sum({&tokens_, 1});
    const auto n = static_cast<int64_t>(width());
    std::vector<float> weighted = output_.weights();
    for (size_t i = 0; i < weighted.size(); ++i)
        weighted[i] *= static_cast<float>(std::sqrt(probability_[i / width()] / tokens_));
    std::vector<float> squares(means_.size());
    blas::multiply(blas::Op::plain, blas::Op::transposed, {n, n, vocabulary()}, weighted.data(),
                   weighted.data(), squares.data());
    std::vector<double> g(means_.size());
    double trace = 0;
    for (size_t i = 0; i < g.size(); ++i) {
        const auto gains = static_cast<double>(output_.norm().gain()[i / width()]) *
                           static_cast<double>(output_.norm().gain()[i % width()]);
        g[i] = (static_cast<double>(squares[i]) - means_[i] / tokens_) * gains;
        if (i % (width() + 1) == 0) trace += g[i];
    }
    for (size_t i = 0; i < g.size(); i += width() + 1) g[i] += floor * trace / static_cast<double>(n);
    information_ = g;
    factor_ = std::move(g);
    if (!(trace > 0) || !blas::cholesky(n, factor_.data()))
        fail(ErrorCode::input, "compress", "the model predicts the same for every residual stream");
    for (int64_t column = 0; column < n; ++column) std::fill_n(factor_.begin() + column * n, column, 0.0);
}

std::vector<float> NextTokenMetric::measured(std::span<const float> differences) const {
    const auto n = static_cast<int64_t>(width()), rows = static_cast<int64_t>(differences.size()) / n;
    const std::vector<float> factor(factor_.begin(), factor_.end());
    std::vector<float> out(differences.size());
    blas::multiply(blas::Op::transposed, blas::Op::plain, {n, rows, n}, factor.data(), differences.data(),
                   out.data());
    return out;
}

// L^-T u = G^-1 L u.
std::vector<float> NextTokenMetric::unmeasured(std::span<const float> mapped) const {
    const auto n = static_cast<int64_t>(width()), columns = static_cast<int64_t>(mapped.size()) / n;
    const std::vector<double> rows(mapped.begin(), mapped.end());  // column major: [columns, n]
    std::vector<double> out(mapped.size()), information = information_;
    blas::multiply(blas::Op::plain, blas::Op::transposed, {n, columns, n}, factor_.data(), rows.data(),
                   out.data());
    if (!blas::solve_positive(n, columns, information.data(), out.data()))
        fail(ErrorCode::internal, "compress", "the metric is not positive");
    const std::vector<float> narrow(out.begin(), out.end());
    return transposed(narrow, columns, n);
}

}  // namespace refold
