// A model for training: the forward pass with gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "engine/torch/weights.h"
#include "model/model.h"

namespace refold {

// Of a sequence of T tokens; undefined where the model has no such part.
struct TorchOutput {
    at::Tensor hidden;  // [T, n_embd], after the final norm
    at::Tensor logits;  // [T, n_vocab]
    at::Tensor pooled;  // [1, n_embd]
};

class TorchModel {
public:
    // at::kFloat, or at::kDouble for checks of gradients.
    TorchModel(const Model& model, bool trainable, at::ScalarType type = at::kFloat,
               FactoredExecution factored = FactoredExecution::automatic);

    // Every stored tensor once, by its name in the model, as a leaf in torch's order of dimensions.
    const std::map<std::string, at::Tensor>& parameters() const { return weights_.leaves(); }

    // The whole sequence at once. Token types and mask as in EncoderInput. Throws Error(input) for ids, types
    // or lengths that do not fit.
    TorchOutput forward(std::span<const int32_t> tokens, std::span<const int32_t> token_types = {},
                        std::span<const int32_t> mask = {}) const;

private:
    ModelConfig config_;
    TorchWeights weights_;
};

}  // namespace refold
