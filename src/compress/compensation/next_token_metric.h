// How much a difference in the final residual stream changes the next token's distribution.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibrate/output_layer.h"
#include "model/model.h"

namespace refold {

// The Fisher information G = L L^T of the next token's distribution as a function of y, as the mean over
// tokens. y is the residual stream x before the final norm, divided by its root mean square (by its standard
// deviation, for layer normalization). For a small difference d of y, |L^T d|^2 / 2 is the mean
// Kullback-Leibler divergence in nats.
class NextTokenMetric {
public:
    // Throws Error(unsupported) for a model without output, or with layers between final norm and output.
    explicit NextTokenMetric(const Model& model);

    // The divisor of a token's residual stream [n_embd].
    float scale(std::span<const float> residual) const;
    // Adds tokens to the mean: [rows, n_embd].
    void add(std::span<const float> residuals);
    // Completes the mean over all processes of group(), for the following functions. Adds `floor` times the
    // mean of the diagonal to the diagonal: differences that are not small matter in all directions.
    void finish(double floor);

    // d [rows, n_embd] becomes rows of L^T d.
    std::vector<float> measured(std::span<const float> differences) const;
    // Back from rows of L^T d: L^-T `mapped`, for a matrix [n_embd, columns].
    std::vector<float> unmeasured(std::span<const float> mapped) const;

private:
    int64_t vocabulary() const { return output_.vocabulary(); }
    size_t width() const { return output_.norm().gain().size(); }

    OutputLayer output_;
    std::vector<double> probability_;  // sums by vocabulary entry
    std::vector<double> means_;        // sum of m m^T, with m = W^T p of a token [n_embd, n_embd]
    double tokens_ = 0;
    std::vector<double> information_, factor_;  // G and its L, lower triangles column by column
};

}  // namespace refold
