// The operations of the forward pass (model/forward.h) as torch operations, all differentiable.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/backend.h"
#include "engine/torch/attention.h"
#include "engine/torch/cache.h"
#include "engine/torch/weights.h"
#include "model/forward.h"

namespace refold {

// What a forward pass is over: sequences of one length, or one that a cache holds the beginning of.
struct TorchStep {
    int64_t sequences = 1, length = 0;  // tokens of each
    int64_t past = 0;                   // tokens of the cache
    int64_t outputs = 0;                // how many of a single sequence's last tokens are wanted
    int64_t sequence_length = 0;        // of the sequence that this step is part of (dynamic rotation)
    at::Tensor tokens;                  // [sequences * length] int64; undefined for a range
    at::Tensor learned_positions;       // [sequences * length] int64
    at::Tensor token_types;             // [sequences * length] int64; undefined: all 0
    at::Tensor padding;  // [length], true: hidden from all, of a single sequence; undefined: none
};
TorchStep torch_step(const StepInput& input, at::Device device);
// Of a batch [sequences, length]. Throws Error(input) for ids or lengths that do not fit.
TorchStep torch_step(const ModelConfig& config, const at::Tensor& tokens);

// Activations are [sequences * tokens, features], in the weights' element type; those that come from products
// and go into products may be of the products' type.
class TorchOps {
public:
    using Value = at::Tensor;

    // Without a cache sequences are whole. Everything given must outlive the operations.
    TorchOps(const ModelConfig& config, const TorchWeights& weights, const TorchStep& step,
             TorchCache* cache = nullptr);

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

    // What a position lends to later ones: its probabilities, its keys and values, or nothing. Kept until it
    // is taken.
    std::vector<Value> take_loans(size_t position);
    void give_loans(size_t position, const std::vector<Value>& loans);

private:
    Value constants(const std::vector<double>& values) const;
    struct Rotation {
        Value cosines, sines;  // [tokens, 1, dims / 2]
    };
    const Rotation& rotation(const Rope& rope);
    Value rotate(const Rope& rope, const Value& x);
    AttentionRule rule(size_t position) const;
    Value scaled(size_t position, const Value& q) const;
    // Rows of the prefix before every sequence's own.
    Value behind_prefix(size_t position, Slot slot, const Value& x) const;

    const ModelConfig& config_;
    const TorchWeights& weights_;
    const TorchStep& step_;
    TorchCache* cache_;
    std::map<const Rope*, Rotation> rotations_;
    Value slopes_;  // of ALiBi
    // Of the positions that others read.
    std::map<size_t, std::vector<Value>> loans_;
};

// The forward pass over one step.
ForwardResult<at::Tensor> torch_forward(const ModelConfig& config, const TorchWeights& weights,
                                        const TorchStep& step, TorchCache* cache);

}  // namespace refold
