// The forward pass, written once: engines supply the operations (forward_ops.h), families fill in the
// configuration, methods change the topology.
//
// Activations are matrices [features, tokens]: the features of a token are contiguous.
#pragma once

#include <array>
#include <optional>
#include <span>

#include "model/forward_streams.h"

namespace refold {

template <class Value>
struct ForwardResult {
    // After the final norm [n_embd, selected tokens]; of a range or a loop: of all tokens, without the norm.
    Value hidden;
    std::optional<Value> logits;       // [n_vocab, selected tokens], where the model has an output
    std::optional<Value> pooled;       // [n_embd, 1], where the model has a pooler
    std::optional<Value> exit_scores;  // [1, tokens] of a loop, where the model has an exit gate
    std::optional<Value> score = {};   // [1, 1], where the model has a head that scores the text
};

template <ForwardOps Ops>
class Forward : ForwardStreams<Ops> {
    using Streams = ForwardStreams<Ops>;
    using Streams::config_, Streams::linear, Streams::n_layer_, Streams::norm_if, Streams::ops_,
        Streams::scaled;

public:
    using Value = typename Ops::Value;

    Forward(Ops& ops, const ModelConfig& config, size_t n_layer) : Streams(ops, config, n_layer) {}

    // From the residual stream before the range to that after it [n_embd, tokens]; all tokens are selected.
    ForwardResult<Value> run(LayerRange range) {
        const std::optional<Value> given = ops_.given_input();
        Value x = given ? *given : embeddings();
        for (size_t l = range.first; l < range.last; ++l) x = layer(l, x);
        return {x, std::nullopt, std::nullopt, std::nullopt};
    }

    ForwardResult<Value> run() {
        Value x = embeddings();
        for (size_t l = 0; l < n_layer_; ++l) x = layer(l, x);
        x = final_norm(x);
        ForwardResult<Value> result{x, std::nullopt, std::nullopt, std::nullopt};
        if (ops_.has(kWholeModel, Slot::output)) {
            result.logits = logits(x);
            ops_.tap(kWholeModel, Tap::logits, *result.logits);
        }
        if (ops_.has(kWholeModel, Slot::pooler)) {
            const Value pooled = linear(kWholeModel, std::array{Slot::pooler}, ops_.select_first(x))[0];
            result.pooled = ops_.activate(Activation::tanh, pooled);
            if (ops_.has(kWholeModel, Slot::score))
                result.score = linear(kWholeModel, std::array{Slot::score}, *result.pooled)[0];
        }
        return result;
    }

    // One loop of `length` layers. The logits are those of a model that ends with it.
    ForwardResult<Value> run_loop(size_t length, bool with_logits) requires LoopOps<Ops> {
        Value x = ops_.resume(embeddings());
        for (size_t l = 0; l < length; ++l) x = layer(l, x);
        ForwardResult<Value> result{x, std::nullopt, std::nullopt, std::nullopt};
        if (ops_.has(kWholeModel, Slot::exit_gate))
            result.exit_scores = linear(kWholeModel, std::array{Slot::exit_gate}, x)[0];
        if (!with_logits) return result;
        result.logits =
            logits(final_norm(ops_.with_exit_map(length - 1, ops_.select_outputs(x))),
                   [&](Value in, Value out) { return ops_.with_exit_output(length - 1, in, out); });
        return result;
    }

    // Stores the keys and values that all layers of a loop make of one residual stream (CALM's state
    // propagation).
    void keys_only(size_t length, Value x) requires LoopOps<Ops> {
        for (size_t l = 0; l < length; ++l) keys_of(l, x);
    }

    // The steps of run(), for engines that interleave work of their own.
    Value embeddings() {
        Value x = ops_.embed(Slot::token_embd);
        x = scaled(x, config_.embedding_scale);
        for (const Slot slot : {Slot::token_types, Slot::position_embd}) {
            if (ops_.has(kWholeModel, slot)) x = ops_.add(x, ops_.embed(slot));
        }
        x = norm_if(kWholeModel, Slot::embd_norm, x);
        if (ops_.has(kWholeModel, Slot::embd_map)) x = linear(kWholeModel, std::array{Slot::embd_map}, x)[0];
        return config_.n_stream > 1 ? this->streams_of(x) : x;
    }

    Value layer(size_t l, Value x) {
        if (config_.n_stream == 1) return plain_layer(l, x);
        return this->layer_of_streams(l, x, [&](Value active) { return plain_layer(l, active); });
    }

    // Of one residual stream. Pruning may leave a layer without attention or without FFN.
    Value plain_layer(size_t l, Value x) {
        ops_.tap(l, Tap::layer_input, x);
        Value normed = norm_if(l, Slot::attn_norm, x);
        ops_.tap(l, Tap::attn_input, normed);
        std::optional<Value> attended;
        if (ops_.has(l, Slot::attn_o)) attended = attention(l, normed);
        if (l + 1 == n_layer_) {
            x = ops_.select_outputs(x);
            normed = ops_.select_outputs(normed);
        }
        attended = with_compensation(l, Slot::attn_comp, attended, normed);
        if (config_.parallel_residual) {
            // GPT-J feeds both modules from one norm, GPT-NeoX has one for each.
            const Value input = ops_.has(l, Slot::ffn_norm) ? ops_.norm(l, Slot::ffn_norm, x) : normed;
            const std::optional<Value> fed = fed_from(l, input, normed);
            if (!fed) return attended ? ops_.add(*attended, x) : x;
            return ops_.add(attended ? ops_.add(*fed, *attended) : *fed, x);
        }
        if (attended) x = ops_.add(*attended, x);
        x = norm_if(l, Slot::attn_output_norm, this->with_laurel(l, x, normed));
        ops_.tap(l, Tap::residual, x);
        if (const auto fed = fed_from(l, norm_if(l, Slot::ffn_norm, x), normed)) x = ops_.add(*fed, x);
        return norm_if(l, Slot::ffn_output_norm, x);
    }

    // The result of a token that exits after the layer.
    Value exit_norm(size_t l, Value x) {
        if (ops_.has(l, Slot::exit_map)) x = ops_.add(x, linear(l, std::array{Slot::exit_map}, x)[0]);
        return final_norm(x);
    }

    Value final_norm(Value x) {
        return norm_if(kWholeModel, Slot::output_norm, config_.n_stream > 1 ? this->merged_streams(x) : x);
    }

    Value logits(Value x) {
        return logits(x, [](Value, Value out) { return out; });
    }

    // Of a token that exits after the layer.
    Value exit_logits(size_t l, Value x) {
        return logits(x,
                      [&](Value in, Value out) { return *with_compensation(l, Slot::exit_output, out, in); });
    }

private:
    // `added`: from the input and the result of the output layer, what a head that differs from it gives.
    template <typename Added>
    Value logits(Value x, Added&& added) {
        if (ops_.has(kWholeModel, Slot::head_dense)) {
            x = linear(kWholeModel, std::array{Slot::head_dense}, x)[0];
            x = norm_if(kWholeModel, Slot::head_norm, ops_.activate(config_.activation, x));
        }
        x = added(x, linear(kWholeModel, std::array{Slot::output}, x)[0]);
        if (config_.norm_head) x = ops_.divide_by_row_norms(Slot::output, x);
        x = scaled(x, config_.logit_scale);
        return config_.logit_softcap > 0 ? ops_.softcap(x, config_.logit_softcap) : x;
    }

    template <size_t N>
    std::array<Value, N> expert_linear(size_t layer, const std::array<Slot, N>& slots, Value x,
                                       Value routes) {
        std::array<Value, N> out{};
        ops_.expert_linear(layer, std::span<const Slot>(slots), x, routes, std::span<Value>(out));
        return out;
    }

    Value query_norm(size_t l, Value q) {
        return norm_if(l, Slot::attn_q_norm_all, norm_if(l, Slot::attn_q_norm, q));
    }
    Value key_norm(size_t l, Value k) {
        return norm_if(l, Slot::attn_k_norm_all, norm_if(l, Slot::attn_k_norm, k));
    }

    Value value_norm(Value v) { return config_.norm_values ? ops_.normalized(v, config_.head_dim) : v; }

    // Calls `norm`, and `rotate` where layer `l` does, in the model's order.
    template <typename Norm, typename Rotate>
    void in_order(size_t l, Norm&& norm, Rotate&& rotate) {
        if (!config_.norm_after_rope) norm();
        if (config_.rope_of(l).dims > 0) rotate();
        if (config_.norm_after_rope) norm();
    }

    // sum + W x, as far as there are a sum and a W (of compensation, of an exit) in this slot.
    std::optional<Value> with_compensation(size_t l, Slot slot, std::optional<Value> sum, Value x) {
        if (!ops_.has(l, slot)) return sum;
        const Value compensation = linear(l, std::array{slot}, x)[0];
        return sum ? ops_.add(*sum, compensation) : compensation;
    }

    // The last layer stores keys and values of all tokens, but only the selected ones go on.
    Value attention(size_t l, Value x) {
        Value inner = attended_values(l, x);
        const auto wanted = [&](Value all) { return l + 1 == n_layer_ ? ops_.select_outputs(all) : all; };
        inner = *with_compensation(l, Slot::attn_comp_o, inner, wanted(x));
        ops_.tap(l, Tap::attn_inner, inner);
        Value attended = linear(l, std::array{Slot::attn_o}, inner)[0];
        attended = *with_compensation(l, Slot::attn_comp_norm, attended, wanted(x));
        ops_.tap(l, Tap::attn_projected, attended);
        attended = scaled(norm_if(l, Slot::attn_post_norm, attended), config_.residual_scale);
        ops_.tap(l, Tap::attn_output, attended);
        return attended;
    }

    // The input of attn.o, without attn.comp_o.
    Value attended_values(size_t l, Value x) {
        const bool last = l + 1 == n_layer_;
        const AttentionSource& source = ops_.source(l);
        if (source.probabilities) {
            const Value v = value_norm(linear(l, std::array{Slot::attn_v}, x)[0]);
            ops_.tap(l, Tap::v, v);
            return *with_compensation(l, Slot::attn_comp_v, ops_.attention_as_source(l, v, last),
                                      last ? ops_.select_outputs(v) : v);
        }
        if (source.kv) {
            Value q = linear(l, std::array{Slot::attn_q}, x)[0];
            // Rotated like the keys, whatever rotation the layer itself has.
            in_order(
                *source.kv, [&] { q = query_norm(l, q); }, [&] { ops_.rope(*source.kv, q); });
            ops_.tap(l, Tap::q, q);
            return ops_.attention_over_source(l, last ? ops_.select_outputs(q) : q);
        }
        auto [q, k, v] = linear(l, std::array{Slot::attn_q, Slot::attn_k, Slot::attn_v}, x);
        const auto norm = [&, &queries = q, &keys = k] {
            queries = query_norm(l, queries);
            keys = key_norm(l, keys);
        };
        in_order(l, norm, [&, &queries = q, &keys = k] { ops_.rope(l, queries, keys); });
        v = value_norm(v);
        ops_.tap(l, Tap::q, q);
        ops_.tap(l, Tap::k, k);
        ops_.tap(l, Tap::v, v);
        return ops_.attention(l, last ? ops_.select_outputs(q) : q, k, v);
    }

    void keys_of(size_t l, Value x) {
        const AttentionSource& source = ops_.source(l);
        if (!ops_.has(l, Slot::attn_o) || source.kv) return;
        x = norm_if(l, Slot::attn_norm, x);
        if (source.probabilities) return ops_.store(l, value_norm(linear(l, std::array{Slot::attn_v}, x)[0]));
        auto [k, v] = linear(l, std::array{Slot::attn_k, Slot::attn_v}, x);
        in_order(
            l, [&, &keys = k] { keys = key_norm(l, keys); }, [&, &keys = k] { ops_.rope(l, keys); });
        ops_.store(l, k, value_norm(v));
    }

    // The FFN's output plus attn.comp_ffn, as far as the layer has them.
    std::optional<Value> fed_from(size_t l, Value input, Value normed) {
        std::optional<Value> fed;
        const bool mixture = ops_.has(l, Slot::ffn_router);
        if (mixture || ops_.has(l, Slot::ffn_down)) {
            ops_.tap(l, Tap::ffn_input, input);
            const Value projected = mixture ? mixture_of_experts(l, input) : feed_forward(l, input);
            ops_.tap(l, Tap::ffn_projected, projected);
            fed = scaled(norm_if(l, Slot::ffn_post_norm, projected), config_.residual_scale);
            ops_.tap(l, Tap::ffn_output, *fed);
        }
        return with_compensation(l, Slot::attn_comp_ffn, fed, normed);
    }

    Value feed_forward(size_t l, Value x) {
        Value inner{};
        if (ops_.has(l, Slot::ffn_gate)) {
            auto [gate, up] = linear(l, std::array{Slot::ffn_gate, Slot::ffn_up}, x);
            if (config_.cuts_ffn(l)) gate = ops_.cut(l, gate);
            inner = ops_.gated(config_.activation, gate, up);
        } else {
            inner = ops_.activate(config_.activation, linear(l, std::array{Slot::ffn_up}, x)[0]);
        }
        ops_.tap(l, Tap::ffn_inner, inner);
        return linear(l, std::array{Slot::ffn_down}, inner)[0];
    }

    Value mixture_of_experts(size_t l, Value x) {
        const Value routes = ops_.route(linear(l, std::array{Slot::ffn_router}, x)[0]);
        const auto [gate, up] = expert_linear(l, std::array{Slot::ffn_gate_exps, Slot::ffn_up_exps},
                                              ops_.dispatch(x, routes), routes);
        const Value inner = ops_.gated(config_.activation, gate, up);
        return ops_.combine(expert_linear(l, std::array{Slot::ffn_down_exps}, inner, routes)[0], routes);
    }
};

template <ForwardOps Ops>
ForwardResult<typename Ops::Value> forward(Ops& ops, const ModelConfig& config, size_t n_layer,
                                           std::optional<LayerRange> range = std::nullopt) {
    // A range has no last layer that only selected tokens leave.
    if (range) return Forward<Ops>(ops, config, kWholeModel).run(*range);
    return Forward<Ops>(ops, config, n_layer).run();
}

}  // namespace refold
