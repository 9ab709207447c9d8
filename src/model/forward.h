// The forward pass, written once. An engine supplies the operations (concept ForwardOps); a method changes
// the topology, a family fills the configuration; none of them changes this file.
//
// Activations are matrices [features, tokens]: every token's features are contiguous.
#pragma once

#include <array>
#include <concepts>
#include <optional>
#include <span>

#include "model/model.h"

namespace refold {

// `Value` is the engine's handle of an activation.
template <class Ops>
concept ForwardOps = requires(Ops ops, typename Ops::Value x, size_t position, Slot slot,
                              std::span<const Slot> slots, std::span<typename Ops::Value> out,
                              Activation activation, float number) {
    { ops.has(position, slot) } -> std::same_as<bool>;
    // rows of the table token_embd, position_embd or token_types for the tokens of this step: [n_embd,
    // tokens]
    { ops.embed(slot) } -> std::same_as<typename Ops::Value>;
    // RMS or layer normalisation (ModelConfig::norm) over groups of as many features as the slot's weight has
    // (one head's, for attn.q_norm), times the weight, plus the bias where there is one
    { ops.norm(position, slot, x) } -> std::same_as<typename Ops::Value>;
    // out[i] = W_i x (+ bias_i): several linear maps of one input, which an engine may run as one
    {ops.linear(position, slots, x, out)};
    // rotary embedding of queries [n_head * head_dim, tokens] and keys [n_head_kv * head_dim, tokens], in
    // place
    {ops.rope(position, x, x)};
    // attention over this position's keys and values, to which k and v are appended: [n_head * head_dim,
    // tokens of q]; q holds all tokens of the step or the selected ones. Scale, soft cap, window, ALiBi and
    // causality are the configuration's; padding is hidden from all tokens.
    { ops.attention(position, x, x, x) } -> std::same_as<typename Ops::Value>;
    { ops.activate(activation, x) } -> std::same_as<typename Ops::Value>;
    // activation(gate) * up
    { ops.gated(activation, x, x) } -> std::same_as<typename Ops::Value>;
    { ops.add(x, x) } -> std::same_as<typename Ops::Value>;
    { ops.scale(x, number) } -> std::same_as<typename Ops::Value>;
    // cap * tanh(x / cap)
    { ops.softcap(x, number) } -> std::same_as<typename Ops::Value>;
    // every feature divided by the L2 norm of the row of the slot's matrix that made it
    { ops.divide_by_row_norms(slot, x) } -> std::same_as<typename Ops::Value>;
    // keeps only the tokens whose results are wanted
    { ops.select_outputs(x) } -> std::same_as<typename Ops::Value>;
    // keeps only the first token of the sequence
    { ops.select_first(x) } -> std::same_as<typename Ops::Value>;
};

template <class Value>
struct ForwardResult {
    Value hidden;                 // after the last position and the final norm [n_embd, selected tokens]
    std::optional<Value> logits;  // [n_vocab, selected tokens], where the model has an output
    std::optional<Value> pooled;  // [n_embd, 1], where the model has a pooler
};

template <ForwardOps Ops>
class Forward {
public:
    using Value = typename Ops::Value;

    Forward(Ops& ops, const ModelConfig& config, size_t n_positions)
        : ops_(ops), config_(config), n_positions_(n_positions) {}

    ForwardResult<Value> run() {
        Value x = embeddings();
        for (size_t p = 0; p < n_positions_; ++p) x = layer(p, x);
        x = norm_if(kModelPosition, Slot::output_norm, x);
        ForwardResult<Value> result{x, std::nullopt, std::nullopt};
        if (ops_.has(kModelPosition, Slot::output)) result.logits = logits(x);
        if (ops_.has(kModelPosition, Slot::pooler)) {
            const Value pooled = linear(kModelPosition, std::array{Slot::pooler}, ops_.select_first(x))[0];
            result.pooled = ops_.activate(Activation::tanh, pooled);
        }
        return result;
    }

private:
    template <size_t N>
    std::array<Value, N> linear(size_t position, const std::array<Slot, N>& slots, Value x) {
        std::array<Value, N> out{};
        ops_.linear(position, std::span<const Slot>(slots), x, std::span<Value>(out));
        return out;
    }

    Value norm_if(size_t position, Slot slot, Value x) {
        return ops_.has(position, slot) ? ops_.norm(position, slot, x) : x;
    }

    Value embeddings() {
        Value x = ops_.embed(Slot::token_embd);
        if (config_.embedding_scale != 1.0F) x = ops_.scale(x, config_.embedding_scale);
        for (const Slot slot : {Slot::token_types, Slot::position_embd}) {
            if (ops_.has(kModelPosition, slot)) x = ops_.add(x, ops_.embed(slot));
        }
        return norm_if(kModelPosition, Slot::embd_norm, x);
    }

    // Pruning may leave a position without attention or without FFN.
    Value layer(size_t p, Value x) {
        Value normed = norm_if(p, Slot::attn_norm, x);
        std::optional<Value> attended;
        if (ops_.has(p, Slot::attn_o)) attended = attention(p, normed);
        if (p + 1 == n_positions_) {
            x = ops_.select_outputs(x);
            if (config_.parallel_residual) normed = ops_.select_outputs(normed);
        }
        if (config_.parallel_residual) {
            // GPT-J feeds both modules from one norm, GPT-NeoX has one for each.
            const Value input = ops_.has(p, Slot::ffn_norm) ? ops_.norm(p, Slot::ffn_norm, x) : normed;
            if (!ops_.has(p, Slot::ffn_down)) return attended ? ops_.add(*attended, x) : x;
            const Value fed = feed_forward(p, input);
            return ops_.add(attended ? ops_.add(fed, *attended) : fed, x);
        }
        if (attended) x = ops_.add(*attended, x);
        x = norm_if(p, Slot::attn_output_norm, x);
        if (ops_.has(p, Slot::ffn_down)) x = ops_.add(feed_forward(p, norm_if(p, Slot::ffn_norm, x)), x);
        return norm_if(p, Slot::ffn_output_norm, x);
    }

    // At the last position all tokens are stored, but only the wanted ones go on.
    Value attention(size_t p, Value x) {
        auto [q, k, v] = linear(p, std::array{Slot::attn_q, Slot::attn_k, Slot::attn_v}, x);
        q = norm_if(p, Slot::attn_q_norm, q);
        k = norm_if(p, Slot::attn_k_norm, k);
        if (config_.rope_of(p).dims > 0) ops_.rope(p, q, k);
        if (p + 1 == n_positions_) q = ops_.select_outputs(q);
        const Value attended = linear(p, std::array{Slot::attn_o}, ops_.attention(p, q, k, v))[0];
        return norm_if(p, Slot::attn_post_norm, attended);
    }

    Value feed_forward(size_t p, Value x) {
        Value inner{};
        if (ops_.has(p, Slot::ffn_gate)) {
            const auto [gate, up] = linear(p, std::array{Slot::ffn_gate, Slot::ffn_up}, x);
            inner = ops_.gated(config_.activation, gate, up);
        } else {
            inner = ops_.activate(config_.activation, linear(p, std::array{Slot::ffn_up}, x)[0]);
        }
        return norm_if(p, Slot::ffn_post_norm, linear(p, std::array{Slot::ffn_down}, inner)[0]);
    }

    Value logits(Value x) {
        if (ops_.has(kModelPosition, Slot::head_dense)) {
            x = linear(kModelPosition, std::array{Slot::head_dense}, x)[0];
            x = norm_if(kModelPosition, Slot::head_norm, ops_.activate(config_.activation, x));
        }
        x = linear(kModelPosition, std::array{Slot::output}, x)[0];
        if (config_.norm_head) x = ops_.divide_by_row_norms(Slot::output, x);
        return config_.logit_softcap > 0 ? ops_.softcap(x, config_.logit_softcap) : x;
    }

    Ops& ops_;
    const ModelConfig& config_;
    size_t n_positions_;
};

template <ForwardOps Ops>
ForwardResult<typename Ops::Value> forward(Ops& ops, const ModelConfig& config, size_t n_positions) {
    return Forward<Ops>(ops, config, n_positions).run();
}

}  // namespace refold
