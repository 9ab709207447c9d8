// The norm between the residual stream and the head. In models without one the head reads the stream itself.
#pragma once

#include <span>
#include <vector>

#include "model/model.h"

namespace refold {

class FinalNorm {
public:
    explicit FinalNorm(const Model& model);

    // What the norm divides a token's residual stream [n_embd] by.
    float scale(std::span<const float> residual) const;
    // The inputs of the head for tokens [rows, n_embd].
    std::vector<float> operator()(std::span<const float> residuals) const;

    // Empty without a norm.
    std::span<const float> gain() const { return gain_; }

private:
    NormKind norm_;
    float eps_;
    std::vector<float> gain_, bias_;
};

}  // namespace refold
