// The forward pass, written once. An engine supplies the operations (concept ForwardOps); a method changes
// the topology; neither changes this file.
//
// Activations are matrices [features, tokens]: every token's features are contiguous.
#pragma once

#include <array>
#include <concepts>
#include <span>

#include "model/model.h"

namespace refold {

// `Value` is the engine's handle of an activation.
template <class Ops>
concept ForwardOps = requires(Ops ops, typename Ops::Value x, size_t position, Slot slot,
                              std::span<const Slot> slots, std::span<typename Ops::Value> out,
                              Activation activation) {
    // [n_embd, tokens]: rows of the embedding table for the tokens of this step
    { ops.embed() } -> std::same_as<typename Ops::Value>;
    // RMS normalisation over features, times the slot's weight
    { ops.norm(position, slot, x) } -> std::same_as<typename Ops::Value>;
    // out[i] = W_i x (+ bias_i): several linear maps of one input, which an engine may run as one
    {ops.linear(position, slots, x, out)};
    // rotary embedding of queries [n_head * head_dim, tokens] and keys [n_head_kv * head_dim, tokens], in
    // place
    {ops.rope(x, x)};
    // causal attention over this position's KV cache, to which k and v are appended: [n_head * head_dim,
    // tokens of q]; q holds all tokens of the step or the selected ones
    { ops.attention(position, x, x, x) } -> std::same_as<typename Ops::Value>;
    // activation(gate) * up
    { ops.gated(activation, x, x) } -> std::same_as<typename Ops::Value>;
    { ops.add(x, x) } -> std::same_as<typename Ops::Value>;
    // keeps only the tokens whose logits are wanted
    { ops.select_outputs(x) } -> std::same_as<typename Ops::Value>;
};

// `position` of the slots that belong to the whole model.
constexpr size_t kModelPosition = static_cast<size_t>(-1);

// Logits [n_vocab, selected tokens].
template <ForwardOps Ops>
typename Ops::Value forward(Ops& ops, const ModelConfig& config, size_t n_positions) {
    using Value = typename Ops::Value;
    const auto linear = [&]<size_t N>(size_t position, const std::array<Slot, N>& slots, Value x) {
        std::array<Value, N> out{};
        ops.linear(position, std::span<const Slot>(slots), x, std::span<Value>(out));
        return out;
    };
    Value x = ops.embed();
    for (size_t p = 0; p < n_positions; ++p) {
        const Value normed = ops.norm(p, Slot::attn_norm, x);
        auto [q, k, v] = linear(p, std::array{Slot::attn_q, Slot::attn_k, Slot::attn_v}, normed);
        ops.rope(q, k);
        // At the last position all tokens are stored, but only the wanted ones go on.
        if (p + 1 == n_positions) {
            q = ops.select_outputs(q);
            x = ops.select_outputs(x);
        }
        x = ops.add(linear(p, std::array{Slot::attn_o}, ops.attention(p, q, k, v))[0], x);
        auto [gate, up] = linear(p, std::array{Slot::ffn_gate, Slot::ffn_up}, ops.norm(p, Slot::ffn_norm, x));
        x = ops.add(linear(p, std::array{Slot::ffn_down}, ops.gated(config.activation, gate, up))[0], x);
    }
    return linear(kModelPosition, std::array{Slot::output},
                  ops.norm(kModelPosition, Slot::output_norm, x))[0];
}

}  // namespace refold
