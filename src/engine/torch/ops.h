// The operations of the forward pass (model/forward.h) as torch operations, all differentiable.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <span>

#include "engine/backend.h"
#include "engine/torch/cache.h"
#include "engine/torch/weights.h"
#include "model/forward.h"

namespace refold {

// One step. Activations are [tokens, features], in the weights' element type.
class TorchOps {
public:
    using Value = at::Tensor;

    // Without a cache the step is a whole sequence. Everything given must outlive the operations.
    TorchOps(const ModelConfig& config, const TorchWeights& weights, const StepInput& input,
             TorchCache* cache);

    bool has(size_t position, Slot slot) const { return weights_.has(position, slot); }
    Value embed(Slot slot) const;
    Value norm(size_t position, Slot slot, const Value& x) const;
    void linear(size_t position, std::span<const Slot> slots, const Value& x, std::span<Value> out) const;
    // Replaces q and k by rotated ones.
    void rope(size_t position, Value& q, Value& k);
    void rope(size_t position, Value& q);
    const AttentionSource& source(size_t position) const { return weights_.topology().source(position); }
    Value attention(size_t position, const Value& q, Value k, Value v);
    Value attention_over_source(size_t position, const Value& q);
    Value attention_as_source(size_t position, Value v, bool selected);
    void tap(size_t, Tap, const Value&) const {}
    std::optional<Value> given_input() const { return std::nullopt; }
    Value activate(Activation activation, const Value& x) const;
    Value gated(Activation activation, const Value& gate, const Value& up) const;
    Value add(const Value& a, const Value& b) const;
    Value scale(const Value& x, float factor) const;
    Value softcap(const Value& x, float cap) const;
    Value divide_by_row_norms(Slot slot, const Value& x) const;
    Value select_outputs(const Value& x) const;
    Value select_first(const Value& x) const;

private:
    struct Rotation {
        Value cosines, sines;  // [tokens, 1, dims / 2]
    };
    const Rotation& rotation(const Rope& rope);
    Value rotate(const Rope& rope, const Value& x);
    // Probabilities [n_head, queries, keys] of scores.
    Value attend(size_t position, Value scores);
    // [n_head, queries, keys]
    Value probabilities(size_t position, const Value& q, const Value& k);
    // Values [keys, key/value heads * head_dim] weighted with probabilities.
    Value weighted(size_t position, const Value& probabilities, const Value& v) const;
    // True where a query must not see a key [tokens, prefix rows and keys]; undefined when all see all.
    const Value& hidden(int64_t window);
    Value distances() const;

    const ModelConfig& config_;
    const TorchWeights& weights_;
    const StepInput& input_;
    TorchCache* cache_;
    std::map<const Rope*, Rotation> rotations_;
    std::map<int64_t, Value> hidden_;  // by window
    // Of the positions that others read.
    std::map<size_t, Value> lent_probabilities_;
    std::map<size_t, std::pair<Value, Value>> lent_kv_;
};

// The forward pass over one step.
ForwardResult<at::Tensor> torch_forward(const ModelConfig& config, const TorchWeights& weights,
                                        const StepInput& input, TorchCache* cache);

}  // namespace refold
