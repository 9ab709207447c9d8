// How far a model's predictions are from the original's on the held-out calibration text.
#pragma once

#include <cstdint>
#include <vector>

#include "calibrate/output_layer.h"
#include "model/model.h"

namespace refold {

// Compares models with the original, with the memory of a layer and of the output. Every comparison is a
// forward pass over the held-out sequences.
class HeldOutDivergence {
public:
    // False for models whose next token's distribution is not the output of a final norm.
    static bool possible(const Model& model);

    // Runs the original. `sequences` must outlive this object. Throws Error(unsupported) unless possible().
    HeldOutDivergence(const Model& original, const std::vector<std::vector<int32_t>>& sequences, int threads);
    // Mean Kullback-Leibler divergence of the model's distribution of the next token from the original's, in
    // nats per token; infinite where the model's logits are not finite.
    double of(const Model& model) const;

private:
    std::vector<std::vector<float>> final_streams(const Model& model) const;

    const std::vector<std::vector<int32_t>>& sequences_;
    int threads_;
    OutputLayer output_;
    std::vector<std::vector<float>> original_;  // residual streams after the last layer, by sequence
};

}  // namespace refold
