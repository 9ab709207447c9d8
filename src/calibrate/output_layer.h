// From the residual stream to logits, for streams that went through a model layer by layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibrate/final_norm.h"
#include "model/model.h"

namespace refold {

// The final norm and the output layer, in float32.
class OutputLayer {
public:
    // False for a model without output, or with layers between final norm and output.
    static bool possible(const Model& model);
    // Throws Error(unsupported) unless possible().
    explicit OutputLayer(const Model& model);

    const FinalNorm& norm() const { return norm_; }
    int64_t vocabulary() const { return static_cast<int64_t>(weights_.size() / norm_.gain().size()); }
    // [n_vocab, n_embd], with norm_head and logit_scale.
    const std::vector<float>& weights() const { return weights_; }
    // Logits [rows, n_vocab] of the residual stream before the final norm [rows, n_embd], with bias and soft
    // cap.
    std::vector<float> logits(std::span<const float> residuals) const;

private:
    void divide_by_row_norms();

    FinalNorm norm_;
    float softcap_;
    std::vector<float> weights_, bias_;
};

}  // namespace refold
