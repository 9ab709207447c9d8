#include "compress/compensation/next_token_metric.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/group.h"
#include "linalg/blas.h"
#include "model/materialize.h"

namespace refold {
namespace {

constexpr int64_t kRows = 256;  // tokens whose logits are in memory at a time

std::vector<float> vector_of(const Model& model, Slot slot) {
    const auto found = model.topology.globals.find(slot);
    if (found == model.topology.globals.end()) return {};
    return materialize(model, found->second, slot);
}

}  // namespace

NextTokenMetric::NextTokenMetric(const Model& model)
    : norm_(model.config.norm),
      eps_(model.config.norm_eps),
      softcap_(model.config.logit_softcap),
      gain_(vector_of(model, Slot::output_norm)),
      norm_bias_(vector_of(model, Slot::output_norm_bias)),
      output_bias_(vector_of(model, Slot::output_bias)) {
    const Slots& globals = model.topology.globals;
    if (!globals.contains(Slot::output) || globals.contains(Slot::head_dense) || gain_.empty())
        fail(ErrorCode::unsupported, "compress",
             "{}: the next token's distribution is not the output of a final norm", model.label);
    output_ = materialize(model, globals.at(Slot::output), Slot::output);
    const auto n = width();
    if (model.config.norm_head) {
        const Tensor rows{DType::F32,
                          {static_cast<int64_t>(n), vocabulary()},
                          std::as_bytes(std::span<const float>(output_)),
                          {}};
        const std::vector<float> inverse = inverse_row_norms(rows);
        for (size_t i = 0; i < output_.size(); ++i) output_[i] *= inverse[i / n];
    }
    probability_.resize(static_cast<size_t>(vocabulary()));
    means_.resize(n * n);
}

float NextTokenMetric::scale(std::span<const float> residual) const {
    const auto n = static_cast<double>(residual.size());
    double mean = 0, squares = 0;
    if (norm_ == NormKind::layer)
        for (const float x : residual) mean += static_cast<double>(x) / n;
    for (const float x : residual) squares += std::pow(static_cast<double>(x) - mean, 2) / n;
    return static_cast<float>(std::sqrt(squares + static_cast<double>(eps_)));
}

void NextTokenMetric::add(std::span<const float> residuals) {
    const auto n = static_cast<int64_t>(width()), vocabulary = this->vocabulary();
    const auto rows = static_cast<int64_t>(residuals.size()) / n;
    std::vector<float> normed, logits, means;
    for (int64_t first = 0; first < rows; first += kRows) {
        const int64_t count = std::min(kRows, rows - first);
        normed.clear();
        for (int64_t t = first; t < first + count; ++t) {
            const auto x = residuals.subspan(static_cast<size_t>(t * n), width());
            float mean = 0;
            if (norm_ == NormKind::layer)
                for (const float value : x) mean += value / static_cast<float>(n);
            const float scale = this->scale(x);
            for (size_t i = 0; i < width(); ++i)
                normed.push_back((x[i] - mean) / scale * gain_[i] + (norm_bias_.empty() ? 0 : norm_bias_[i]));
        }
        // Row major here, column major there: logits^T = W h^T.
        logits.resize(static_cast<size_t>(count * vocabulary));
        blas::multiply(blas::Op::transposed, blas::Op::plain, {vocabulary, count, n}, output_.data(),
                       normed.data(), logits.data());
        for (int64_t t = 0; t < count; ++t) {
            float* row = logits.data() + t * vocabulary;
            float largest = -INFINITY;
            for (int64_t i = 0; i < vocabulary; ++i) {
                if (!output_bias_.empty()) row[i] += output_bias_[static_cast<size_t>(i)];
                if (softcap_ > 0) row[i] = softcap_ * std::tanh(row[i] / softcap_);
                largest = std::max(largest, row[i]);
            }
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
        blas::multiply(blas::Op::plain, blas::Op::plain, {n, count, vocabulary}, output_.data(),
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
    std::vector<float> weighted = output_;
    for (size_t i = 0; i < weighted.size(); ++i)
        weighted[i] *= static_cast<float>(std::sqrt(probability_[i / width()] / tokens_));
    std::vector<float> squares(means_.size());
    blas::multiply(blas::Op::plain, blas::Op::transposed, {n, n, vocabulary()}, weighted.data(),
                   weighted.data(), squares.data());
    std::vector<double> g(means_.size());
    double trace = 0;
    for (size_t i = 0; i < g.size(); ++i) {
        const auto gains = static_cast<double>(gain_[i / width()]) * static_cast<double>(gain_[i % width()]);
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
