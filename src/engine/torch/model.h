// A model for training: the forward pass with gradients, over batches of sequences of one length.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/torch/weights.h"
#include "model/model.h"

namespace refold {

// Of a sequence of T tokens; undefined where the model has no such part.
struct TorchOutput {
    at::Tensor hidden;  // [T, n_embd], after the final norm
    at::Tensor logits;  // [T, n_vocab]
    at::Tensor pooled;  // [1, n_embd]
};

// Must outlive the backward passes of its results. What is given must be on its device, results are.
// Activations are [sequences * tokens, features].
class TorchModel {
public:
    // `options` are the device and the type: at::kFloat, or at::kDouble for checks of gradients. With `range`
    // only the tensors of its positions are loaded, for range(); none of the model's own (embeddings, output,
    // final norm). Throws Error(usage) for a range that the model does not have or that reads attention from
    // outside.
    TorchModel(const Model& model, bool trainable, at::TensorOptions options = at::kFloat,
               FactoredExecution factored = FactoredExecution::automatic,
               std::optional<PositionRange> range = std::nullopt);

    // Every stored tensor once, by its name in the model, as a leaf in torch's order of dimensions.
    const std::map<std::string, at::Tensor>& parameters() const { return weights_.leaves(); }
    at::Device device() const { return weights_.device(); }
    const ModelConfig& config() const { return config_; }
    const Topology& topology() const { return weights_.topology(); }

    struct Execution {
        // Products in bfloat16; activations between them, norms, softmax and losses stay float32.
        bool bf16 = false;
        // Activations within a position are computed again in the backward pass: between the passes only
        // those that positions hand on are kept.
        bool checkpointing = false;
    };
    void set_execution(const Execution& execution);

    // A whole sequence at once. Token types and mask as in EncoderInput. Throws Error(input) for ids, types
    // or lengths that do not fit.
    TorchOutput forward(std::span<const int32_t> tokens, std::span<const int32_t> token_types = {},
                        std::span<const int32_t> mask = {}) const;

    // Hidden states [B * T, n_embd], all after the final norm.
    struct Hidden {
        at::Tensor final;
        std::vector<at::Tensor> exits;
    };
    // Of `tokens` [B, T] (int64). An exit e is behind the first e positions, through their exit map where
    // there is one. Throws Error(input) for ids or lengths that do not fit, Error(usage) for an exit that is no
    // position's.
    Hidden hidden(const at::Tensor& tokens, std::span<const size_t> exits = {}) const;

    // Of hidden states [n, n_embd]: [n, n_vocab], soft cap and norm_head included. Throws Error(unsupported)
    // for a model without output.
    at::Tensor logits(const at::Tensor& hidden) const;

    // The residual stream [B, T, n_embd] behind the constructor's range of positions (all, when none was
    // given), of that before it.
    at::Tensor range(const at::Tensor& residual) const;

private:
    struct Pass;

    ModelConfig config_;
    PositionRange range_;
    TorchWeights weights_;
    Execution execution_;
};

}  // namespace refold
