#include "compress/refit/gptq_rounding.h"

#include <algorithm>

#include "linalg/blas.h"

namespace refold {
namespace {

using Floats = std::vector<float>;

// Columns are kept as rows in reversed order: column c of the map is row inputs - 1 - c. With gram = L L^T,
// the squared error of the outputs is |E L|^2, whose row r depends only on the rows of E from r on.
class GptqRounding {
public:
    GptqRounding(std::span<const float> weights, const RoundingInputs& in, DType type)
        : in_(in),
          n_(static_cast<size_t>(in.inputs)),
          outputs_(weights.size() / n_),
          type_(type),
          factor_(in.gram.rbegin(), in.gram.rend()),
          weights_(weights.begin(), weights.end()),
          errors_(weights.size()) {}

    Floats run() {
        if (!factorize()) return weights_;
        const auto rounded = static_cast<size_t>(in_.rounded),
                   block = static_cast<size_t>(block_elements(type_));
        for (size_t first = 0; first < rounded; first += block) {
            correct(first, block);
            round(first, block);
        }
        if (rounded < n_) correct(rounded, n_ - rounded);
        return std::move(weights_);
    }

private:
    bool factorize() {
        double mean = 0;
        for (size_t i = 0; i < n_; ++i) mean += factor_[i * (n_ + 1)] / static_cast<double>(n_);
        // As in GPTQ: weights of inputs that the text lacks must not change without limit.
        for (size_t i = 0; i < n_; ++i) factor_[i * (n_ + 1)] += 0.01 * mean;
        return mean > 0 && blas::cholesky(in_.inputs, factor_.data());
    }

    // L[row][column]
    double factor(size_t row, size_t column) const { return factor_[column * n_ + row]; }

    // W_B += (E_done L_done,B) L_BB^-1 for the columns B from `first` on.
    void correct(size_t first, size_t count) {
        if (first == 0) return;
        const size_t begin = n_ - first - count, end = n_ - first;
        std::vector<double> panel, step(outputs_ * count);
        for (size_t c = begin; c < end; ++c)
            panel.insert(panel.end(), &factor_[c * n_ + end], factor_.data() + (c + 1) * n_);
        blas::multiply(
            blas::Op::plain, blas::Op::plain,
            {static_cast<int64_t>(outputs_), static_cast<int64_t>(count), static_cast<int64_t>(first)},
            errors_.data() + end * outputs_, panel.data(), step.data());
        for (size_t c = count; c-- > 0;) {
            double* own = step.data() + c * outputs_;
            for (size_t k = c + 1; k < count; ++k) {
                const double weight = factor(begin + k, begin + c);
                const double* other = step.data() + k * outputs_;
                for (size_t o = 0; o < outputs_; ++o) own[o] -= other[o] * weight;
            }
            for (size_t o = 0; o < outputs_; ++o) own[o] /= factor(begin + c, begin + c);
            const size_t column = n_ - 1 - (begin + c);
            for (size_t o = 0; o < outputs_; ++o) weights_[o * n_ + column] += static_cast<float>(own[o]);
        }
        // The error is measured against the given weights, and the correction is part of it.
        for (size_t c = 0; c < count; ++c) {
            for (size_t o = 0; o < outputs_; ++o)
                errors_[(begin + c) * outputs_ + o] = -step[c * outputs_ + o];
        }
    }

    void round(size_t first, size_t count) {
        Floats values;
        for (size_t o = 0; o < outputs_; ++o)
            values.insert(values.end(), &weights_[o * n_ + first], &weights_[o * n_ + first] + count);
        Floats rounded(values.size());
        dequantize(type_, quantize(type_, values, static_cast<int64_t>(count)), rounded);
        for (size_t o = 0; o < outputs_; ++o) {
            for (size_t c = 0; c < count; ++c) {
                const float value = rounded[o * count + c];
                errors_[(n_ - 1 - first - c) * outputs_ + o] +=
                    static_cast<double>(values[o * count + c] - value);
                weights_[o * n_ + first + c] = value;
            }
        }
    }

    const RoundingInputs& in_;
    size_t n_, outputs_;
    DType type_;
    std::vector<double> factor_;  // column major, lower
    Floats weights_;
    std::vector<double> errors_;  // [n][outputs], reversed: given - rounded
};

}  // namespace

Floats gptq_rounded(std::span<const float> weights, const RoundingInputs& inputs, DType type) {
    return GptqRounding(weights, inputs, type).run();
}

}  // namespace refold
