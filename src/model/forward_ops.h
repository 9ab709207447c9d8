// What the forward pass (forward.h) asks of an engine.
//
// Activations are matrices [features, tokens]: the features of a token are contiguous.
#pragma once

#include <concepts>
#include <optional>
#include <span>

#include "model/model.h"
#include "model/tap.h"

namespace refold {

// Of with_rms_of() in ForwardOps.
inline constexpr float kLeastSquare = 1e-5F;

// `Value` is the engine's handle of an activation.
template <class Ops>
concept ForwardOps = requires(Ops ops, typename Ops::Value x, size_t layer, Slot slot,
                              std::span<const Slot> slots, std::span<typename Ops::Value> out,
                              std::span<const typename Ops::Value> values, Activation activation,
                              int64_t first, float number) {
    { ops.has(layer, slot) } -> std::same_as<bool>;
    // rows of a table (token_embd, position_embd, token_types, layer_input.embd) for the tokens of this step
    // [row elements, tokens]
    { ops.embed(slot) } -> std::same_as<typename Ops::Value>;
    // normalization (ModelConfig::norm) over groups of normalized_width() (attn.q_norm: a head), times the
    // weight, plus the bias if there is one
    { ops.norm(layer, slot, x) } -> std::same_as<typename Ops::Value>;
    // out[i] = W_i x (+ bias_i): linear maps of one input, which an engine may run as one
    {ops.linear(layer, slots, x, out)};
    // the layer whose attention this one uses
    { ops.source(layer) } -> std::convertible_to<AttentionSource>;
    // rotary embedding, in place, of queries [n_head * head_dim, tokens] and keys [n_head_kv * head_dim,
    // tokens]; or of one of them
    {ops.rope(layer, x, x)};
    {ops.rope(layer, x)};
    // appends k and v to this layer's keys and values and attends to them: [n_head * head_dim, tokens of q];
    // q holds all tokens of the step or the selected ones. Scale, soft cap, window, ALiBi and causality are
    // the configuration's; no token sees padding.
    { ops.attention(layer, x, x, x) } -> std::same_as<typename Ops::Value>;
    // the same over the keys and values of the layer's source
    { ops.attention_over_source(layer, x) } -> std::same_as<typename Ops::Value>;
    // appends v to this layer's values and weights them with the probabilities of the layer's source, for all
    // tokens of the step or (true) the selected ones
    { ops.attention_as_source(layer, x, number > 0) } -> std::same_as<typename Ops::Value>;
    { ops.activate(activation, x) } -> std::same_as<typename Ops::Value>;
    // activation(gate) * up
    { ops.gated(activation, x, x) } -> std::same_as<typename Ops::Value>;
    // from a router's scores [experts, tokens]: which experts each token uses, and their weights (routing.h)
    { ops.route(x) } -> std::same_as<typename Ops::Value>;
    // the inputs of the experts, sorted by expert, for their tokens [features, tokens * experts used]
    { ops.dispatch(x, x) } -> std::same_as<typename Ops::Value>;
    // out[i] = W_i x (+ bias_i) of such inputs and routes, each with its expert's weights
    {ops.expert_linear(layer, slots, x, x, out)};
    // the sum of the results of each token's experts, times their weights [features, tokens]
    { ops.combine(x, x) } -> std::same_as<typename Ops::Value>;
    { ops.add(x, x) } -> std::same_as<typename Ops::Value>;
    { ops.subtract(x, x) } -> std::same_as<typename Ops::Value>;
    { ops.scale(x, number) } -> std::same_as<typename Ops::Value>;
    // cap * tanh(x / cap)
    { ops.softcap(x, number) } -> std::same_as<typename Ops::Value>;
    // features [first, first + count) of x; several values with their features one after the other
    { ops.part(x, first, first) } -> std::same_as<typename Ops::Value>;
    { ops.join(values) } -> std::same_as<typename Ops::Value>;
    // x times a gain, without a norm
    { ops.scale_features(layer, slot, x) } -> std::same_as<typename Ops::Value>;
    // RMS norm without a gain of each `first` features
    { ops.normalized(x, first) } -> std::same_as<typename Ops::Value>;
    // x with the root mean square of y: x rms(y) / sqrt(max(mean(x^2), kLeastSquare))
    { ops.with_rms_of(x, x) } -> std::same_as<typename Ops::Value>;
    // gates of the layer's FFN cut off as ModelConfig::ffn_cuts says
    { ops.cut(layer, x) } -> std::same_as<typename Ops::Value>;
    // One matrix for each part of x, as many as the slot's weight has blocks of rows: y[i] = W[i] x[i]
    { ops.linear_by_part(layer, slot, x) } -> std::same_as<typename Ops::Value>;
    // of x = A vectors of n_embd features and coefficients [B * A], vectors y[b] = sum over a of
    // coefficients[b A + a] x[a]
    { ops.mix(x, x) } -> std::same_as<typename Ops::Value>;
    // adds y to each vector of as many features of x, from feature `first` on. x is not used otherwise.
    { ops.add_to_each(x, first, x) } -> std::same_as<typename Ops::Value>;
    // divides every feature by the L2 norm of the matrix row that made it
    { ops.divide_by_row_norms(slot, x) } -> std::same_as<typename Ops::Value>;
    // shows an activation to whoever observes the layer
    {ops.tap(layer, Tap::layer_input, x)};
    // the input of a range of layers, in place of embeddings
    { ops.given_input() } -> std::same_as<std::optional<typename Ops::Value>>;
    // keeps only the tokens whose results are wanted
    { ops.select_outputs(x) } -> std::same_as<typename Ops::Value>;
    // keeps only the first token of the sequence
    { ops.select_first(x) } -> std::same_as<typename Ops::Value>;
};

// Also needed for steps whose tokens are at different loops of a looped model
// (EngineOptions::by_loop).
template <class Ops>
concept LoopOps = ForwardOps<Ops> && requires(Ops ops, typename Ops::Value x, size_t layer) {
    // x for tokens at the first loop; for others the residual stream after their last loop
    { ops.resume(x) } -> std::same_as<typename Ops::Value>;
    // appends k and v to the layer's keys and values; v alone where the probabilities are another layer's
    {ops.store(layer, x, x)};
    {ops.store(layer, x)};
    // x of the selected tokens plus exit map times x, with the map of each token's own loop, which ends with
    // `layer`; x where that loop has none
    { ops.with_exit_map(layer, x) } -> std::same_as<typename Ops::Value>;
    // logits y of final hidden states x plus exit output times x, likewise
    { ops.with_exit_output(layer, x, x) } -> std::same_as<typename Ops::Value>;
};

}  // namespace refold
