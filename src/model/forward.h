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
#include "model/tap.h"

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
    // where the position's attention comes from
    { ops.source(position) } -> std::convertible_to<AttentionSource>;
    // rotary embedding of queries [n_head * head_dim, tokens] and keys [n_head_kv * head_dim, tokens], in
    // place; or of queries alone
    {ops.rope(position, x, x)};
    {ops.rope(position, x)};
    // attention over this position's keys and values, to which k and v are appended: [n_head * head_dim,
    // tokens of q]; q holds all tokens of the step or the selected ones. Scale, soft cap, window, ALiBi and
    // causality are the configuration's; padding is hidden from all tokens.
    { ops.attention(position, x, x, x) } -> std::same_as<typename Ops::Value>;
    // the same over the keys and values of the position's source
    { ops.attention_over_source(position, x) } -> std::same_as<typename Ops::Value>;
    // this position's values v of all tokens, to which those before are added, weighted with the
    // probabilities of the position's source, for all tokens of the step or the selected ones
    { ops.attention_as_source(position, x, number > 0) } -> std::same_as<typename Ops::Value>;
    { ops.activate(activation, x) } -> std::same_as<typename Ops::Value>;
    // activation(gate) * up
    { ops.gated(activation, x, x) } -> std::same_as<typename Ops::Value>;
    { ops.add(x, x) } -> std::same_as<typename Ops::Value>;
    { ops.scale(x, number) } -> std::same_as<typename Ops::Value>;
    // cap * tanh(x / cap)
    { ops.softcap(x, number) } -> std::same_as<typename Ops::Value>;
    // every feature divided by the L2 norm of the row of the slot's matrix that made it
    { ops.divide_by_row_norms(slot, x) } -> std::same_as<typename Ops::Value>;
    // shows an activation to whoever observes the position
    {ops.tap(position, Tap::layer_input, x)};
    // activations that a range of positions begins with, in place of embeddings
    { ops.given_input() } -> std::same_as<std::optional<typename Ops::Value>>;
    // keeps only the tokens whose results are wanted
    { ops.select_outputs(x) } -> std::same_as<typename Ops::Value>;
    // keeps only the first token of the sequence
    { ops.select_first(x) } -> std::same_as<typename Ops::Value>;
};

// What steps of a looped model need besides whose tokens stand at different loops (engine/batch.h).
template <class Ops>
concept LoopOps = ForwardOps<Ops> && requires(Ops ops, typename Ops::Value x, size_t position) {
    // x for tokens that begin; of those behind the first loop the residual stream that they left the last one
    // with
    { ops.resume(x) } -> std::same_as<typename Ops::Value>;
    // appends k and v to the position's keys and values; values alone where its attention is another one's
    {ops.store(position, x, x)};
    {ops.store(position, x)};
    // x of selected tokens plus the product of x and the exit map of each token's own loop, whose end
    // `position` is; x where that has none
    { ops.with_exit_map(position, x) } -> std::same_as<typename Ops::Value>;
};

template <class Value>
struct ForwardResult {
    // After the last position and the final norm [n_embd, selected tokens]; after a range or a loop, of all
    // tokens and without the norm.
    Value hidden;
    std::optional<Value> logits;  // [n_vocab, selected tokens], where the model has an output
    std::optional<Value> pooled;  // [n_embd, 1], where the model has a pooler
};

template <ForwardOps Ops>
class Forward {
public:
    using Value = typename Ops::Value;

    Forward(Ops& ops, const ModelConfig& config, size_t n_positions)
        : ops_(ops), config_(config), n_positions_(n_positions) {}

    // Residual stream before and after the range [n_embd, tokens]; all tokens are selected.
    ForwardResult<Value> run(PositionRange range) {
        const std::optional<Value> given = ops_.given_input();
        Value x = given ? *given : embeddings();
        for (size_t p = range.first; p < range.last; ++p) x = layer(p, x);
        return {x, std::nullopt, std::nullopt};
    }

    ForwardResult<Value> run() {
        Value x = embeddings();
        for (size_t p = 0; p < n_positions_; ++p) x = layer(p, x);
        x = final_norm(x);
        ForwardResult<Value> result{x, std::nullopt, std::nullopt};
        if (ops_.has(kModelPosition, Slot::output)) {
            result.logits = logits(x);
            ops_.tap(kModelPosition, Tap::logits, *result.logits);
        }
        if (ops_.has(kModelPosition, Slot::pooler)) {
            const Value pooled = linear(kModelPosition, std::array{Slot::pooler}, ops_.select_first(x))[0];
            result.pooled = ops_.activate(Activation::tanh, pooled);
        }
        return result;
    }

    // One loop of `length` positions. Logits are those of a model that ends here.
    ForwardResult<Value> run_loop(size_t length, bool with_logits) requires LoopOps<Ops> {
        Value x = ops_.resume(embeddings());
        for (size_t p = 0; p < length; ++p) x = layer(p, x);
        ForwardResult<Value> result{x, std::nullopt, std::nullopt};
        if (with_logits)
            result.logits = logits(final_norm(ops_.with_exit_map(length - 1, ops_.select_outputs(x))));
        return result;
    }

    // Only the keys and values of a loop, all of one residual stream (CALM's state propagation).
    void keys_only(size_t length, Value x) requires LoopOps<Ops> {
        for (size_t p = 0; p < length; ++p) keys_of(p, x);
    }

    // The parts of run(), for an engine that does something between them.
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
        ops_.tap(p, Tap::layer_input, x);
        Value normed = norm_if(p, Slot::attn_norm, x);
        ops_.tap(p, Tap::attn_input, normed);
        std::optional<Value> attended;
        if (ops_.has(p, Slot::attn_o)) attended = attention(p, normed);
        if (p + 1 == n_positions_) {
            x = ops_.select_outputs(x);
            normed = ops_.select_outputs(normed);
        }
        attended = with_compensation(p, Slot::attn_comp, attended, normed);
        if (config_.parallel_residual) {
            // GPT-J feeds both modules from one norm, GPT-NeoX has one for each.
            const Value input = ops_.has(p, Slot::ffn_norm) ? ops_.norm(p, Slot::ffn_norm, x) : normed;
            const std::optional<Value> fed = fed_from(p, input, normed);
            if (!fed) return attended ? ops_.add(*attended, x) : x;
            return ops_.add(attended ? ops_.add(*fed, *attended) : *fed, x);
        }
        if (attended) x = ops_.add(*attended, x);
        x = norm_if(p, Slot::attn_output_norm, x);
        ops_.tap(p, Tap::residual, x);
        if (const auto fed = fed_from(p, norm_if(p, Slot::ffn_norm, x), normed)) x = ops_.add(*fed, x);
        return norm_if(p, Slot::ffn_output_norm, x);
    }

    // What a token that exits behind position p leaves with.
    Value exit_norm(size_t p, Value x) {
        if (ops_.has(p, Slot::exit_map)) x = ops_.add(x, linear(p, std::array{Slot::exit_map}, x)[0]);
        return final_norm(x);
    }

    Value final_norm(Value x) { return norm_if(kModelPosition, Slot::output_norm, x); }

    Value logits(Value x) {
        if (ops_.has(kModelPosition, Slot::head_dense)) {
            x = linear(kModelPosition, std::array{Slot::head_dense}, x)[0];
            x = norm_if(kModelPosition, Slot::head_norm, ops_.activate(config_.activation, x));
        }
        x = linear(kModelPosition, std::array{Slot::output}, x)[0];
        if (config_.norm_head) x = ops_.divide_by_row_norms(Slot::output, x);
        return config_.logit_softcap > 0 ? ops_.softcap(x, config_.logit_softcap) : x;
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

    // W_c of one place times x, added to `sum` where there is one.
    std::optional<Value> with_compensation(size_t p, Slot slot, std::optional<Value> sum, Value x) {
        if (!ops_.has(p, slot)) return sum;
        const Value compensation = linear(p, std::array{slot}, x)[0];
        return sum ? ops_.add(*sum, compensation) : compensation;
    }

    // At the last position all tokens are stored, but only the wanted ones go on.
    Value attention(size_t p, Value x) {
        Value inner = attended_values(p, x);
        const auto wanted = [&](Value all) { return p + 1 == n_positions_ ? ops_.select_outputs(all) : all; };
        inner = *with_compensation(p, Slot::attn_comp_o, inner, wanted(x));
        ops_.tap(p, Tap::attn_inner, inner);
        Value attended = linear(p, std::array{Slot::attn_o}, inner)[0];
        ops_.tap(p, Tap::attn_projected, attended);
        attended = norm_if(p, Slot::attn_post_norm, attended);
        ops_.tap(p, Tap::attn_output, attended);
        return attended;
    }

    // What goes into attn.o, but for compensation of the input.
    Value attended_values(size_t p, Value x) {
        const bool last = p + 1 == n_positions_;
        const AttentionSource& source = ops_.source(p);
        if (source.probabilities) {
            const Value v = linear(p, std::array{Slot::attn_v}, x)[0];
            ops_.tap(p, Tap::v, v);
            return *with_compensation(p, Slot::attn_comp_v, ops_.attention_as_source(p, v, last),
                                      last ? ops_.select_outputs(v) : v);
        }
        if (source.kv) {
            Value q = norm_if(p, Slot::attn_q_norm, linear(p, std::array{Slot::attn_q}, x)[0]);
            // Turned as the keys are, whatever rotation the position had.
            if (config_.rope_of(*source.kv).dims > 0) ops_.rope(*source.kv, q);
            ops_.tap(p, Tap::q, q);
            return ops_.attention_over_source(p, last ? ops_.select_outputs(q) : q);
        }
        auto [q, k, v] = linear(p, std::array{Slot::attn_q, Slot::attn_k, Slot::attn_v}, x);
        q = norm_if(p, Slot::attn_q_norm, q);
        k = norm_if(p, Slot::attn_k_norm, k);
        if (config_.rope_of(p).dims > 0) ops_.rope(p, q, k);
        ops_.tap(p, Tap::q, q);
        ops_.tap(p, Tap::k, k);
        ops_.tap(p, Tap::v, v);
        return ops_.attention(p, last ? ops_.select_outputs(q) : q, k, v);
    }

    void keys_of(size_t p, Value x) {
        const AttentionSource& source = ops_.source(p);
        if (!ops_.has(p, Slot::attn_o) || source.kv) return;
        x = norm_if(p, Slot::attn_norm, x);
        if (source.probabilities) return ops_.store(p, linear(p, std::array{Slot::attn_v}, x)[0]);
        auto [k, v] = linear(p, std::array{Slot::attn_k, Slot::attn_v}, x);
        k = norm_if(p, Slot::attn_k_norm, k);
        if (config_.rope_of(p).dims > 0) ops_.rope(p, k);
        ops_.store(p, k, v);
    }

    // The FFN's output and what compensates there, as far as the position has them.
    std::optional<Value> fed_from(size_t p, Value input, Value normed) {
        std::optional<Value> fed;
        if (ops_.has(p, Slot::ffn_down)) {
            ops_.tap(p, Tap::ffn_input, input);
            fed = feed_forward(p, input);
            ops_.tap(p, Tap::ffn_output, *fed);
        }
        return with_compensation(p, Slot::attn_comp_ffn, fed, normed);
    }

    Value feed_forward(size_t p, Value x) {
        Value inner{};
        if (ops_.has(p, Slot::ffn_gate)) {
            const auto [gate, up] = linear(p, std::array{Slot::ffn_gate, Slot::ffn_up}, x);
            inner = ops_.gated(config_.activation, gate, up);
        } else {
            inner = ops_.activate(config_.activation, linear(p, std::array{Slot::ffn_up}, x)[0]);
        }
        ops_.tap(p, Tap::ffn_inner, inner);
        const Value projected = linear(p, std::array{Slot::ffn_down}, inner)[0];
        ops_.tap(p, Tap::ffn_projected, projected);
        return norm_if(p, Slot::ffn_post_norm, projected);
    }

    Ops& ops_;
    const ModelConfig& config_;
    size_t n_positions_;
};

template <ForwardOps Ops>
ForwardResult<typename Ops::Value> forward(Ops& ops, const ModelConfig& config, size_t n_positions,
                                           std::optional<PositionRange> range = std::nullopt) {
    // In a range no position is the one that only wanted tokens leave.
    if (range) return Forward<Ops>(ops, config, kModelPosition).run(*range);
    return Forward<Ops>(ops, config, n_positions).run();
}

}  // namespace refold
