// A model for training: the forward pass with gradients, over batches of sequences of equal length.
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

// Results for a sequence of T tokens; undefined where the model has no such output.
struct TorchOutput {
    at::Tensor hidden;  // [T, n_embd], after the final norm
    at::Tensor logits;  // [T, n_vocab]
    at::Tensor pooled;  // [1, n_embd]
};

// Must outlive the backward passes of its results. Arguments must be on its device, as results are.
// Activations are [sequences * tokens, features].
class TorchModel {
public:
    // `options`: device and type, at::kFloat, at::kDouble for checks of gradients, or at::kBFloat16 for
    // matrices in BF16 (vectors and activations are float32). With `range` only the tensors of its layers are
    // loaded, without embeddings, final norm and output, and only range() may be called. Throws Error(usage)
    // for a range outside the model, or one that takes attention from a layer outside the range.
    TorchModel(const Model& model, bool trainable, at::TensorOptions options = at::kFloat,
               FactoredExecution factored = FactoredExecution::automatic,
               std::optional<LayerRange> range = std::nullopt);

    // Every stored tensor once, by its name in the model: a leaf, with dimensions in torch's order.
    const std::map<std::string, at::Tensor>& parameters() const { return weights_.leaves(); }
    at::Device device() const { return weights_.device(); }
    const ModelConfig& config() const { return config_; }
    const Topology& topology() const { return weights_.topology(); }

    struct Execution {
        // Products in BF16; activations between them, norms, softmax and losses stay F32.
        bool bf16 = false;
        // Only activations that pass between layers are kept; those within a layer are computed again in the
        // backward pass.
        bool checkpointing = false;
    };
    void set_execution(const Execution& execution);

    // A whole sequence. Token types and mask as in EncoderInput. Throws Error(input) for ids, types or
    // lengths that do not fit.
    TorchOutput forward(std::span<const int32_t> tokens, std::span<const int32_t> token_types = {},
                        std::span<const int32_t> mask = {}) const;

    // Hidden states [B * T, n_embd] after the final norm.
    struct Hidden {
        at::Tensor final;
        std::vector<at::Tensor> exits;
    };
    // Hidden states of `tokens` [B, T] (int64). Exit e is after the first e layers, and after their exit map
    // if there is one. Throws Error(input) for ids or lengths that do not fit, Error(usage) for an exit
    // outside the model.
    Hidden hidden(const at::Tensor& tokens, std::span<const size_t> exits = {}) const;

    // Logits [n, n_vocab] of hidden states [n, n_embd], with soft cap and norm_head. `exit`: they are those
    // of the exit after so many layers, with its own term of the output if there is one; 0: the final ones.
    // Throws Error(unsupported) for a model without output.
    at::Tensor logits(const at::Tensor& hidden, size_t exit = 0) const;

    // The residual stream [B, T, n_embd] after the constructor's range of layers (default: all), from the one
    // before it.
    at::Tensor range(const at::Tensor& residual) const;

private:
    struct Pass;

    ModelConfig config_;
    LayerRange range_;
    TorchWeights weights_;
    Execution execution_;
};

}  // namespace refold
