// LAuReL, several residual streams (AltUp) and inputs of layers, as Gemma 3n has them: parts of the forward
// pass (forward.h).
#pragma once

#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "model/forward_ops.h"

namespace refold {

template <ForwardOps Ops>
class ForwardStreams {
protected:
    using Value = typename Ops::Value;

    ForwardStreams(Ops& ops, const ModelConfig& config, size_t n_layer)
        : ops_(ops), config_(config), n_layer_(n_layer) {}

    // ---- of all layers ----

    template <size_t N>
    std::array<Value, N> linear(size_t layer, const std::array<Slot, N>& slots, Value x) {
        std::array<Value, N> out{};
        ops_.linear(layer, std::span<const Slot>(slots), x, std::span<Value>(out));
        return out;
    }

    Value norm_if(size_t layer, Slot slot, Value x) {
        return ops_.has(layer, slot) ? ops_.norm(layer, slot, x) : x;
    }

    Value scaled(Value x, float factor) { return factor != 1.0F ? ops_.scale(x, factor) : x; }

    // ---- of these ----

    // Learned Augmented Residual Layer (Menghani et al., 2024), of low rank: the mean of the residual stream
    // after the attention and of a map of its normed input plus itself, times sqrt(2).
    Value with_laurel(size_t l, Value x, Value normed) {
        if (!ops_.has(l, Slot::laurel_down)) return x;
        Value y = linear(l, std::array{Slot::laurel_down}, normed)[0];
        y = norm_if(l, Slot::laurel_norm, linear(l, std::array{Slot::laurel_up}, y)[0]);
        return ops_.scale(ops_.add(x, ops_.add(y, normed)), kHalfRoot);
    }

    // The embedding and maps of it that have its root mean square.
    Value streams_of(Value x) {
        if (ops_.has(kWholeModel, Slot::layer_input_map)) layer_inputs_ = inputs_of_layers(x);
        const Value added = linear(kWholeModel, std::array{Slot::streams_in}, x)[0];
        std::vector<Value> all = {x};
        for (int64_t s = 0; s + 1 < config_.n_stream; ++s)
            all.push_back(ops_.with_rms_of(stream(added, s), x));
        return ops_.join(all);
    }

    // Alternating Updates (Baykal et al., 2023): the layer runs on the prediction of the first stream, and
    // the difference that it makes corrects the predictions of all.
    template <typename PlainLayer>
    Value layer_of_streams(size_t l, Value x, PlainLayer&& plain_layer) {
        const Value coefficients =
            linear(l, std::array{Slot::stream_predict}, stream_scores(l, stream(x, 0)))[0];
        Value predicted = ops_.add(x, ops_.mix(x, coefficients));
        const Value active = plain_layer(stream(predicted, 0));
        if (l + 1 == n_layer_) predicted = ops_.select_outputs(predicted);
        const Value change = ops_.subtract(active, stream(predicted, 0));
        const Value gains = linear(l, std::array{Slot::stream_correct}, stream_scores(l, active))[0];
        // (gain + 1) * change
        x = ops_.add_to_each(ops_.add(predicted, ops_.mix(change, gains)), 0, change);
        return ops_.has(l, Slot::layer_input_gate) ? with_layer_input(l, x) : x;
    }

    // The mean of the first stream and of maps of the others that have its root mean square.
    Value merged_streams(Value x) {
        const Value first = stream(x, 0);
        const Value others =
            ops_.linear_by_part(kWholeModel, Slot::streams_out,
                                ops_.part(x, config_.n_embd, (config_.n_stream - 1) * config_.n_embd));
        Value sum = first;
        for (int64_t s = 0; s + 1 < config_.n_stream; ++s)
            sum = ops_.add(sum, ops_.with_rms_of(stream(others, s), first));
        return ops_.scale(sum, 1.0F / static_cast<float>(config_.n_stream));
    }

    Ops& ops_;
    const ModelConfig& config_;
    size_t n_layer_;

private:
    static constexpr float kHalfRoot = 0.70710678F;  // of sums of two

    Value stream(Value x, int64_t s) { return ops_.part(x, s * config_.n_embd, config_.n_embd); }

    // [n_layer_input * layers, tokens]
    Value inputs_of_layers(Value x) {
        const Value table = ops_.scale(ops_.embed(Slot::layer_input_embd),
                                       std::sqrt(static_cast<float>(config_.n_layer_input)));
        Value map = linear(kWholeModel, std::array{Slot::layer_input_map}, x)[0];
        map = ops_.scale(map, 1.0F / std::sqrt(static_cast<float>(config_.n_embd)));
        return ops_.scale(ops_.add(norm_if(kWholeModel, Slot::layer_input_norm, map), table), kHalfRoot);
    }

    Value stream_scores(size_t l, Value x) {
        const Value normed =
            ops_.scale(ops_.norm(l, Slot::stream_router_norm, x), 1.0F / static_cast<float>(config_.n_embd));
        return ops_.activate(Activation::tanh, linear(l, std::array{Slot::stream_router}, normed)[0]);
    }

    // Gated by the first stream, it is added to the others.
    Value with_layer_input(size_t l, Value x) {
        const int64_t width = config_.n_layer_input;
        Value input = ops_.part(*layer_inputs_, static_cast<int64_t>(l) * width, width);
        if (l + 1 == n_layer_) input = ops_.select_outputs(input);
        const Value first = ops_.scale_features(l, Slot::layer_input_scale, stream(x, 0));
        const Value gate = linear(l, std::array{Slot::layer_input_gate}, first)[0];
        Value y = ops_.gated(config_.activation, gate, input);
        y = norm_if(l, Slot::layer_input_post_norm, linear(l, std::array{Slot::layer_input_up}, y)[0]);
        return ops_.add_to_each(x, config_.n_embd, y);
    }

    std::optional<Value> layer_inputs_;  // of all layers
};

}  // namespace refold
