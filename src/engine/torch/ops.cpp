#include "engine/torch/ops.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>

#include "core/error.h"
#include "engine/positions.h"
#include "engine/torch/functions.h"
#include "engine/torch/rotation.h"

namespace refold {
namespace {

static_assert(ForwardOps<TorchOps>);

template <typename T>
at::Tensor copied(std::span<const T> values, at::ScalarType type, at::Device device) {
    const auto size = static_cast<int64_t>(values.size());
    return at::from_blob(const_cast<T*>(values.data()), {size}, c10::CppTypeToScalarType<T>::value)
        .to(device, type, /*non_blocking=*/false, /*copy=*/true);
}

// ALiBi slopes (Press et al., 2022), for numbers of heads that are no power of two as in ggml.
std::vector<double> alibi_slopes(int64_t n_head, double max_bias) {
    const auto power = static_cast<int64_t>(std::exp2(std::floor(std::log2(n_head))));
    const auto per_power = static_cast<double>(power);
    std::vector<double> slopes;
    for (int64_t h = 0; h < n_head; ++h) {
        const double exponent = h < power
                                    ? -max_bias / per_power * static_cast<double>(h + 1)
                                    : -max_bias / 2 / per_power * static_cast<double>(2 * (h - power) + 1);
        slopes.push_back(std::exp2(exponent));
    }
    return slopes;
}

// What a layer lends: keys and values, or the scaled queries and the keys that its probabilities are made of,
// or first those and then these. Probabilities as such would be of the square of the length, in every
// superblock at once.
constexpr size_t kLentKeys = 0, kLentValues = 1;

}  // namespace

TorchStep torch_step(const ForwardInput& input, at::Device device) {
    TorchStep step;
    step.length = input.count();
    step.past = input.past;
    step.outputs = input.outputs;
    step.sequence_length = input.sequence_length;
    if (input.residual.empty()) {
        step.tokens = copied(input.tokens, at::kLong, device);
    } else {
        step.residual = copied(input.residual, at::kFloat, device).reshape({step.length, -1});
    }
    step.learned_positions = copied(input.positions, at::kLong, device);
    if (!input.token_types.empty()) step.token_types = copied(input.token_types, at::kLong, device);
    if (!input.mask.empty()) step.padding = copied(input.mask, at::kLong, device).eq(0);
    return step;
}

TorchStep torch_step(const ModelConfig& config, const at::Tensor& tokens) {
    if (tokens.dim() != 2 || tokens.numel() == 0 || tokens.scalar_type() != at::kLong)
        fail(ErrorCode::input, "torch engine", "tokens must be sequences of int64 ids [sequences, tokens]");
    TorchStep step;
    step.sequences = tokens.size(0);
    step.length = step.outputs = step.sequence_length = tokens.size(1);
    step.tokens = tokens.reshape({-1});
    const auto check = [](const at::Tensor& ids, int64_t limit, const char* what) {
        const int64_t least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
        if (least < 0 || most >= limit) {
            fail(ErrorCode::input, "torch engine", "{} must be 0 to {}, got {}", what, limit - 1,
                 least < 0 ? least : most);
        }
    };
    check(step.tokens, config.n_vocab, "token ids");
    if (config.n_learned_positions == 0) return step;
    const at::Tensor own = tokens.to(at::kCPU, at::kInt).contiguous();
    std::vector<int32_t> positions;
    for (int64_t s = 0; s < step.sequences; ++s) {
        const std::span<const int32_t> row(own.data_ptr<int32_t>() + s * step.length,
                                           static_cast<size_t>(step.length));
        const auto of_row = positions_of(config, row, 0);
        positions.insert(positions.end(), of_row.begin(), of_row.end());
    }
    step.learned_positions = copied(std::span<const int32_t>(positions), at::kLong, tokens.device());
    check(step.learned_positions, config.n_learned_positions, "learned positions");
    return step;
}

TorchOps::TorchOps(const ModelConfig& config, const TorchWeights& weights, const TorchStep& step,
                   TorchCache* cache)
    : config_(config), weights_(weights), step_(step), cache_(cache) {
    if (config.max_alibi_bias > 0) slopes_ = constants(alibi_slopes(config.n_head, config.max_alibi_bias));
}

TorchOps::Value TorchOps::constants(const std::vector<double>& values) const {
    return copied(std::span(values), weights_.type(), weights_.device());
}

TorchOps::Value TorchOps::embed(Slot slot) const {
    Value rows = slot == Slot::position_embd ? step_.learned_positions : step_.tokens;
    if (slot == Slot::token_types)
        rows = step_.token_types.defined() ? step_.token_types : at::zeros_like(step_.tokens);
    return at::embedding(weights_.matrix(kWholeModel, slot), rows);
}

TorchOps::Value TorchOps::norm(size_t layer, Slot slot, const Value& given) const {
    const Value weight = weights_.vector(layer, slot), bias = weights_.bias(layer, slot);
    const Value x = given.to(weights_.type());
    const int64_t width = normalized_width(slot, config_, layer);
    const Value groups = x.size(1) == width ? x : x.reshape({x.size(0), -1, width});
    if (weight.size(0) != width) {  // a gain for each row of a head
        const Value plain = config_.norm == NormKind::layer
                                ? at::layer_norm(groups, {width}, {}, {}, config_.norm_eps)
                                : rms_norm(groups, at::ones({width}, groups.options()), config_.norm_eps);
        return plain.reshape(x.sizes()) * weight;
    }
    Value normed;
    if (config_.norm == NormKind::layer) {
        normed = at::layer_norm(groups, {width}, weight, bias, config_.norm_eps);
    } else {
        normed = rms_norm(groups, weight, config_.norm_eps);
        if (bias.defined()) normed = normed + bias;
    }
    return normed.reshape(x.sizes());
}

void TorchOps::linear(size_t layer, std::span<const Slot> slots, const Value& x, std::span<Value> out) const {
    TorchWeights::Projections projections;
    const Value input = weights_.to_products(x);
    for (size_t i = 0; i < slots.size(); ++i) out[i] = weights_.linear(layer, slots[i], input, projections);
}

const TorchOps::Rotation& TorchOps::rotation(const Rope& rope) {
    Rotation& rotation = rotations_[&rope];
    if (rotation.cosines.defined()) return rotation;
    // Frequency factors apply to the model's main RoPE only.
    std::span<const float> frequencies;
    if (&rope == &config_.rope)
        frequencies = weights_.rope_frequencies(rope.long_factors && rope.stretches(step_.sequence_length)
                                                    ? Slot::rope_freqs_long
                                                    : Slot::rope_freqs);
    std::vector<int32_t> positions(static_cast<size_t>(step_.length));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(step_.past));
    const Angles angles = rotation_angles(rope, positions, step_.sequence_length, frequencies);
    const auto tensor = [&](const std::vector<double>& values) {
        return constants(values).reshape({-1, 1, rope.dims / 2});
    };
    return rotation = {tensor(angles.cosines), tensor(angles.sines)};
}

TorchOps::Value TorchOps::rotate(const Rope& rope, const Value& x) {
    const auto& [cosines, sines] = rotation(rope);
    const int64_t pairs = rope.dims / 2;
    const Value heads = x.to(weights_.type()).reshape({step_.sequences, step_.length, -1, config_.head_dim});
    const Value rotated = heads.narrow(3, 0, rope.dims);
    Value turned;
    if (rope.kind == RopeKind::interleaved) {
        turned = turn_neighbors(rotated, cosines, sines);
    } else {
        const Value a = rotated.narrow(3, 0, pairs), b = rotated.narrow(3, pairs, pairs);
        turned = at::cat({a * cosines - b * sines, a * sines + b * cosines}, 3);
    }
    if (rope.dims < config_.head_dim)
        turned = at::cat({turned, heads.narrow(3, rope.dims, config_.head_dim - rope.dims)}, 3);
    return turned.reshape(x.sizes());
}

void TorchOps::rope(size_t layer, Value& q, Value& k) {
    const Rope& rope = config_.rope_of(layer);
    q = rotate(rope, q);
    k = rotate(rope, k);
}

void TorchOps::rope(size_t layer, Value& q) { q = rotate(config_.rope_of(layer), q); }

TorchOps::Value TorchOps::slopes(size_t layer) const {
    const auto& kept = config_.alibi_heads_of(layer);
    if (kept.empty()) return slopes_;
    const Value heads = copied(std::span(kept), at::kLong, weights_.device());
    return slopes_.reshape({-1, config_.q_per_kv()}).index_select(0, heads).flatten();
}

AttentionRule TorchOps::rule(size_t layer) const {
    return {.sequences = step_.sequences,
            .groups = config_.n_head_kv_of(layer),
            .per_group = config_.q_per_kv(),
            .head_dim = config_.head_dim,
            .causal = config_.causal,
            .window = config_.window(layer),
            .prefix = config_.n_prefix,
            .softcap = config_.attention_softcap,
            .slopes = slopes(layer),
            .sinks = has(layer, Slot::attn_sinks) ? weights_.vector(layer, Slot::attn_sinks) : Value(),
            .padding = step_.padding};
}

TorchOps::Value TorchOps::scaled(size_t layer, const Value& q) const {
    return weights_.to_products(q * config_.attention_scale_of(layer));
}

std::pair<TorchOps::Value, TorchOps::Value> TorchOps::prefix_rows(size_t layer) const {
    if (!has(layer, Slot::attn_prefix))
        return {weights_.matrix(layer, Slot::attn_prefix_k), weights_.matrix(layer, Slot::attn_prefix_v)};
    std::array<Value, 2> rows;
    linear(layer, std::array{Slot::attn_k, Slot::attn_v}, weights_.matrix(layer, Slot::attn_prefix), rows);
    for (const Slot gain : {Slot::attn_k_norm, Slot::attn_k_norm_all})
        if (has(layer, gain)) rows[0] = norm(layer, gain, rows[0]);
    return {rows[0], rows[1]};
}

TorchOps::Value TorchOps::behind_prefix(const Value& rows, const Value& x) const {
    const Value own = x.to(rows.scalar_type()).reshape({step_.sequences, -1, x.size(1)});
    const Value prefix = rows.unsqueeze(0).expand({step_.sequences, -1, -1});
    return weights_.to_products(at::cat({prefix, own}, 1).reshape({-1, x.size(1)}));
}

TorchOps::Value TorchOps::attention(size_t layer, const Value& q, Value k, Value v) {
    if (cache_ != nullptr) std::tie(k, v) = cache_->append(layer, step_.past, k, v);
    if (config_.n_prefix > 0) {
        const auto [keys, values] = prefix_rows(layer);
        k = behind_prefix(keys, k);
        v = behind_prefix(values, v);
    }
    k = weights_.to_products(k);
    v = weights_.to_products(v);
    if (weights_.topology().lends_kv(layer)) loans_[layer] = {k, v};
    const Value queries = scaled(layer, q);
    if (weights_.topology().lends_probabilities(layer))
        for (const Value& lent : {queries, k}) loans_[layer].push_back(lent);
    return refold::attention(rule(layer), queries, k, v);
}

TorchOps::Value TorchOps::attention_over_source(size_t layer, const Value& q) {
    const auto& loans = loans_.at(*source(layer).kv);
    return refold::attention(rule(layer), scaled(layer, q), loans.at(kLentKeys), loans.at(kLentValues));
}

TorchOps::Value TorchOps::attention_as_source(size_t layer, Value v, bool selected) {
    if (cache_ != nullptr) v = cache_->append(layer, step_.past, v);
    const size_t from = *source(layer).probabilities;
    const auto& loans = loans_.at(from);
    const Value& k = loans.back();
    Value q = loans[loans.size() - 2];
    if (selected) q = q.narrow(0, q.size(0) - step_.outputs, step_.outputs);
    return refold::attention(rule(from), q, k, weights_.to_products(v));
}

std::vector<TorchOps::Value> TorchOps::take_loans(size_t layer) {
    const auto found = loans_.find(layer);
    if (found == loans_.end()) return {};
    std::vector<Value> loans = std::move(found->second);
    loans_.erase(found);
    return loans;
}

void TorchOps::give_loans(size_t layer, const std::vector<Value>& loans) { loans_[layer] = loans; }

TorchOps::Value TorchOps::activate(Activation activation, const Value& x) const {
    switch (activation) {
        case Activation::silu: return at::silu(x);
        case Activation::gelu: return at::gelu(x);
        case Activation::gelu_tanh: return at::gelu(x, "tanh");
        case Activation::relu: return at::relu(x);
        case Activation::relu_squared: return at::relu(x).square();
        case Activation::tanh: return at::tanh(x);
        case Activation::swiglu_clamped: break;  // has no form without a second map
    }
    fail(ErrorCode::internal, "torch engine", "unknown activation");
}

TorchOps::Value TorchOps::gated(Activation activation, const Value& gate, const Value& up) const {
    if (activation == Activation::swiglu_clamped) {
        const Value g = gate.clamp_max(kSwigluLimit), u = up.clamp(-kSwigluLimit, kSwigluLimit);
        return g * at::sigmoid(g * kSwigluAlpha) * (u + 1);
    }
    if (activation == Activation::silu) return silu_gated(gate, up);
    return activate(activation, gate) * up;
}

namespace {

// Experts by use [tokens * used], and the order that sorts uses by them.
struct Uses {
    int64_t used;
    at::Tensor experts, order;
};
Uses uses_of(const at::Tensor& routes) {
    const int64_t used = routes.size(1) / 2;
    const at::Tensor experts = routes.narrow(1, 0, used).reshape({-1}).to(at::kLong);
    return {used, experts, std::get<1>(at::sort(experts, /*stable=*/true, 0, false))};
}

}  // namespace

TorchOps::Value TorchOps::route(const Value& scores) const {
    const Value wide = scores.to(weights_.type());
    const auto [best, experts] = wide.topk(config_.n_expert_used, 1);
    const Value weights =
        config_.norm_expert_weights ? at::softmax(best, 1) : at::softmax(wide, 1).gather(1, experts);
    return at::cat({experts.to(weights.scalar_type()), weights}, 1);
}

TorchOps::Value TorchOps::dispatch(const Value& x, const Value& routes) const {
    const Uses uses = uses_of(routes);
    return x.index_select(0, uses.order.floor_divide(uses.used));
}

void TorchOps::expert_linear(size_t layer, std::span<const Slot> slots, const Value& x, const Value& routes,
                             std::span<Value> out) const {
    const int64_t experts = config_.n_expert_of(layer);
    const at::Tensor counts = at::bincount(uses_of(routes).experts, {}, experts).to(at::kCPU);
    const Value input = weights_.to_products(x);
    for (size_t s = 0; s < slots.size(); ++s) {
        const Value all = weights_.to_products(weights_.matrix(layer, slots[s]));
        const Value bias = weights_.bias(layer, slots[s]);
        const int64_t rows = block_size(slots[s], config_);
        std::vector<Value> parts;
        for (int64_t e = 0, first = 0; e < experts; ++e) {
            const int64_t count = counts[e].item<int64_t>();
            if (count == 0) continue;
            const Value added =
                bias.defined() ? weights_.to_products(bias.narrow(0, e * rows, rows)) : Value();
            parts.push_back(at::linear(input.narrow(0, first, count), all.narrow(0, e * rows, rows), added));
            first += count;
        }
        out[s] = at::cat(parts);
    }
}

TorchOps::Value TorchOps::combine(const Value& uses, const Value& routes) const {
    const auto [used, experts, order] = uses_of(routes);
    const Value weights = routes.narrow(1, used, used).reshape({-1}).index_select(0, order).unsqueeze(1);
    const Value wide = uses.to(weights_.type());
    return at::zeros({routes.size(0), uses.size(1)}, wide.options())
        .index_add(0, order.floor_divide(used), wide * weights);
}

TorchOps::Value TorchOps::add(const Value& a, const Value& b) const { return a + b; }
TorchOps::Value TorchOps::subtract(const Value& a, const Value& b) const { return a - b; }
TorchOps::Value TorchOps::scale(const Value& x, float factor) const { return x * factor; }
TorchOps::Value TorchOps::softcap(const Value& x, float cap) const { return at::tanh(x / cap) * cap; }

TorchOps::Value TorchOps::part(const Value& x, int64_t first, int64_t count) const {
    return x.narrow(1, first, count);
}

TorchOps::Value TorchOps::join(std::span<const Value> values) const {
    return at::cat(at::TensorList(values.data(), values.size()), 1);
}

TorchOps::Value TorchOps::scale_features(size_t layer, Slot slot, const Value& x) const {
    return x.to(weights_.type()) * weights_.vector(layer, slot);
}

TorchOps::Value TorchOps::normalized(const Value& given, int64_t width) const {
    const Value x = given.to(weights_.type()).reshape({given.size(0), -1, width});
    return rms_norm(x, at::ones({width}, x.options()), config_.norm_eps).reshape(given.sizes());
}

TorchOps::Value TorchOps::with_rms_of(const Value& given, const Value& y) const {
    const Value x = given.to(weights_.type());
    const auto mean_square = [](const Value& of) { return of.square().mean({1}, /*keepdim=*/true); };
    return x * (mean_square(y).sqrt() / mean_square(x).clamp_min(kLeastSquare).sqrt());
}

TorchOps::Value TorchOps::cut(size_t layer, const Value& gate) const {
    const Value x = gate.to(weights_.type()), mean = x.mean({1}, /*keepdim=*/true);
    const Value deviation = (x - mean).square().mean({1}, /*keepdim=*/true).sqrt();
    return at::relu(x - (mean + deviation * config_.ffn_cuts[layer]));
}

TorchOps::Value TorchOps::linear_by_part(size_t layer, Slot slot, const Value& x) const {
    const Value weight = weights_.to_products(weights_.matrix(layer, slot)), input = weights_.to_products(x);
    const int64_t width = weight.size(1), parts = x.size(1) / width, rows = weight.size(0) / parts;
    std::vector<Value> out;
    for (int64_t p = 0; p < parts; ++p)
        out.push_back(at::linear(input.narrow(1, p * width, width), weight.narrow(0, p * rows, rows)));
    return join(out);
}

TorchOps::Value TorchOps::mix(const Value& x, const Value& coefficients) const {
    const int64_t tokens = x.size(0), from = x.size(1) / config_.n_embd;
    return at::bmm(coefficients.to(weights_.type()).reshape({tokens, -1, from}),
                   x.to(weights_.type()).reshape({tokens, from, -1}))
        .reshape({tokens, -1});
}

TorchOps::Value TorchOps::add_to_each(const Value& x, int64_t first, const Value& y) const {
    const Value before = x.narrow(1, 0, first), rest = x.narrow(1, first, x.size(1) - first);
    const Value sums = rest.reshape({x.size(0), -1, y.size(1)}) + y.unsqueeze(1);
    return at::cat({before, sums.reshape(rest.sizes())}, 1);
}

TorchOps::Value TorchOps::divide_by_row_norms(Slot slot, const Value& x) const {
    return x / weights_.matrix(kWholeModel, slot).norm(2, {1});
}

TorchOps::Value TorchOps::select_outputs(const Value& x) const {
    return x.narrow(0, x.size(0) - step_.outputs, step_.outputs);
}

TorchOps::Value TorchOps::select_first(const Value& x) const { return x.narrow(0, 0, 1); }

void TorchOps::tap(size_t layer, Tap tap, const Value& x) {
    const Observer* const observer = step_.observer;
    if (observer == nullptr || !observer->taps.contains({layer, tap})) return;
    const Value values = x.to(at::kCPU, at::kFloat).contiguous();
    observer->see({layer,
                   tap,
                   step_.past + step_.length - x.size(0),
                   x.size(0),
                   x.size(1),
                   {values.data_ptr<float>(), static_cast<size_t>(values.numel())}});
    if (++seen_ == observer->taps.size() && observer->only_taps) throw AllSeen();
}

ForwardResult<at::Tensor> torch_forward(const ModelConfig& config, const TorchWeights& weights,
                                        const TorchStep& step, TorchCache* cache,
                                        std::optional<LayerRange> range) {
    TorchOps ops(config, weights, step, cache);
    return forward(ops, config, weights.n_layer(), range);
}

}  // namespace refold
