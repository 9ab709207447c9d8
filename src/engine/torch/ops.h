// The operations of the forward pass (model/forward.h) as differentiable torch operations.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/forward_input.h"
#include "engine/torch/attention.h"
#include "engine/torch/cache.h"
#include "engine/torch/weights.h"
#include "model/forward.h"

namespace refold {

// The tokens of one forward pass: whole sequences of equal length, or the next tokens of a cached sequence.
struct TorchStep {
    int64_t sequences = 1, length = 0;   // length: tokens of each sequence in this step
    int64_t past = 0;                    // tokens in the cache
    int64_t outputs = 0;                 // number of last tokens whose results are wanted (one sequence)
    int64_t sequence_length = 0;         // of the whole sequence that this step is part of (dynamic RoPE)
    at::Tensor tokens;                   // [sequences * length] int64; undefined for a range
    at::Tensor learned_positions;        // [sequences * length] int64
    at::Tensor token_types;              // [sequences * length] int64; undefined: all 0
    at::Tensor padding;                  // [length], true: no token sees it (one sequence); undefined: none
    at::Tensor residual;                 // [length, n_embd], the input of a range; undefined: the embeddings
    const Observer* observer = nullptr;  // of one sequence; may be null
};
TorchStep torch_step(const ForwardInput& input, at::Device device);
// The step of a batch of tokens [sequences, length]. Throws Error(input) for ids or lengths that do not fit.
TorchStep torch_step(const ModelConfig& config, const at::Tensor& tokens);

// Ends a forward pass of which only taps are wanted.
struct AllSeen {};

// Activations are [sequences * tokens, features], in the element type of the weights. Those between two
// products may have the type of products.
class TorchOps {
public:
    using Value = at::Tensor;

    // Without a cache, sequences are whole. All arguments must outlive the operations.
    TorchOps(const ModelConfig& config, const TorchWeights& weights, const TorchStep& step,
             TorchCache* cache = nullptr);

    bool has(size_t layer, Slot slot) const { return weights_.has(layer, slot); }
    Value embed(Slot slot) const;
    Value norm(size_t layer, Slot slot, const Value& x) const;
    void linear(size_t layer, std::span<const Slot> slots, const Value& x, std::span<Value> out) const;
    // Rotates q and k.
    void rope(size_t layer, Value& q, Value& k);
    void rope(size_t layer, Value& q);
    const AttentionSource& source(size_t layer) const { return weights_.topology().source(layer); }
    Value attention(size_t layer, const Value& q, Value k, Value v);
    Value attention_over_source(size_t layer, const Value& q);
    Value attention_as_source(size_t layer, Value v, bool selected);
    // Throws AllSeen after the last tap of an observer that wants nothing else.
    void tap(size_t layer, Tap tap, const Value& x);
    std::optional<Value> given_input() const {
        return step_.residual.defined() ? std::optional(step_.residual) : std::nullopt;
    }
    Value activate(Activation activation, const Value& x) const;
    Value gated(Activation activation, const Value& gate, const Value& up) const;
    // Routes [tokens, 2 * used]: the numbers of a token's experts, and their weights.
    Value route(const Value& scores) const;
    Value dispatch(const Value& x, const Value& routes) const;
    void expert_linear(size_t layer, std::span<const Slot> slots, const Value& x, const Value& routes,
                       std::span<Value> out) const;
    Value combine(const Value& uses, const Value& routes) const;
    Value add(const Value& a, const Value& b) const;
    Value subtract(const Value& a, const Value& b) const;
    Value scale(const Value& x, float factor) const;
    Value softcap(const Value& x, float cap) const;
    Value part(const Value& x, int64_t first, int64_t count) const;
    Value join(std::span<const Value> values) const;
    Value scale_features(size_t layer, Slot slot, const Value& x) const;
    Value normalized(const Value& x, int64_t width) const;
    Value with_rms_of(const Value& x, const Value& y) const;
    Value cut(size_t layer, const Value& gate) const;
    Value linear_by_part(size_t layer, Slot slot, const Value& x) const;
    Value mix(const Value& x, const Value& coefficients) const;
    Value add_to_each(const Value& x, int64_t first, const Value& y) const;
    Value divide_by_row_norms(Slot slot, const Value& x) const;
    Value select_outputs(const Value& x) const;
    Value select_first(const Value& x) const;

    // The values that a layer lends to later ones, if any. They are kept until they are taken.
    std::vector<Value> take_loans(size_t layer);
    void give_loans(size_t layer, const std::vector<Value>& loans);

private:
    Value constants(const std::vector<double>& values) const;
    struct Rotation {
        Value cosines, sines;  // [tokens, 1, dims / 2]
    };
    const Rotation& rotation(const Rope& rope);
    Value rotate(const Rope& rope, const Value& x);
    AttentionRule rule(size_t layer) const;
    Value slopes(size_t layer) const;  // ALiBi, of the layer's heads; undefined: off
    Value scaled(size_t layer, const Value& q) const;
    // The prefix's keys and values, as in model/prefix_rows.h.
    std::pair<Value, Value> prefix_rows(size_t layer) const;
    // Puts the rows of the prefix before those of every sequence.
    Value behind_prefix(const Value& rows, const Value& x) const;

    const ModelConfig& config_;
    const TorchWeights& weights_;
    const TorchStep& step_;
    TorchCache* cache_;
    std::map<const Rope*, Rotation> rotations_;
    Value slopes_;  // ALiBi [n_head]
    // Values that layers lend to later ones, by layer.
    std::map<size_t, std::vector<Value>> loans_;
    size_t seen_ = 0;  // of the observer's taps
};

// The forward pass over one step, or a range of layers of it. Throws AllSeen.
ForwardResult<at::Tensor> torch_forward(const ModelConfig& config, const TorchWeights& weights,
                                        const TorchStep& step, TorchCache* cache,
                                        std::optional<LayerRange> range = std::nullopt);

}  // namespace refold
