#include "engine/torch/ops.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "engine/torch/rotation.h"

namespace refold {
namespace {

static_assert(ForwardOps<TorchOps>);

template <typename T>
at::Tensor copied(std::span<const T> values, at::ScalarType type) {
    const auto size = static_cast<int64_t>(values.size());
    return at::from_blob(const_cast<T*>(values.data()), {size}, c10::CppTypeToScalarType<T>::value)
        .to(type, /*non_blocking=*/false, /*copy=*/true);
}

// ALiBi (Press et al., 2022), slopes of heads whose number may be no power of two as in ggml.
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

}  // namespace

TorchOps::TorchOps(const ModelConfig& config, const TorchWeights& weights, const StepInput& input,
                   TorchCache* cache)
    : config_(config), weights_(weights), input_(input), cache_(cache) {}

TorchOps::Value TorchOps::embed(Slot slot) const {
    const std::vector<int32_t> zeros(slot == Slot::token_types ? input_.tokens.size() : 0);
    std::span<const int32_t> rows = input_.tokens;
    if (slot == Slot::position_embd) rows = input_.positions;
    if (slot == Slot::token_types) rows = input_.token_types.empty() ? zeros : input_.token_types;
    return at::embedding(weights_.matrix(kModelPosition, slot), copied(rows, at::kLong));
}

TorchOps::Value TorchOps::norm(size_t position, Slot slot, const Value& x) const {
    const Value weight = weights_.vector(position, slot), bias = weights_.bias(position, slot);
    const int64_t width = weight.size(0);
    const Value groups = x.reshape({x.size(0), -1, width});
    Value normed;
    if (config_.norm == NormKind::layer) {
        normed = at::layer_norm(groups, {width}, weight, bias, config_.norm_eps);
    } else {
        normed = groups * at::rsqrt((groups * groups).mean(-1, /*keepdim=*/true) + config_.norm_eps) * weight;
        if (bias.defined()) normed = normed + bias;
    }
    return normed.reshape(x.sizes());
}

void TorchOps::linear(size_t position, std::span<const Slot> slots, const Value& x,
                      std::span<Value> out) const {
    TorchWeights::Projections projections;
    for (size_t i = 0; i < slots.size(); ++i) out[i] = weights_.linear(position, slots[i], x, projections);
}

const TorchOps::Rotation& TorchOps::rotation(const Rope& rope) {
    Rotation& rotation = rotations_[&rope];
    if (rotation.cosines.defined()) return rotation;
    // Frequency factors belong to the model's main rotation.
    std::span<const float> frequencies;
    if (&rope == &config_.rope) frequencies = weights_.rope_frequencies();
    const Angles angles = rotation_angles(rope, input_.positions, input_.sequence_length, frequencies);
    const auto tensor = [&](const std::vector<double>& values) {
        return copied(std::span(values), weights_.type()).reshape({-1, 1, rope.dims / 2});
    };
    return rotation = {tensor(angles.cosines), tensor(angles.sines)};
}

TorchOps::Value TorchOps::rotate(const Rope& rope, const Value& x) {
    const auto& [cosines, sines] = rotation(rope);
    const int64_t pairs = rope.dims / 2;
    const Value heads = x.reshape({x.size(0), -1, config_.head_dim});
    const Value rotated = heads.narrow(2, 0, rope.dims);
    const Value rest = heads.narrow(2, rope.dims, config_.head_dim - rope.dims);
    Value turned;
    if (rope.kind == RopeKind::interleaved) {
        const Value pair = rotated.reshape({x.size(0), -1, pairs, 2});
        const Value a = pair.select(3, 0), b = pair.select(3, 1);
        turned = at::stack({a * cosines - b * sines, a * sines + b * cosines}, 3).flatten(2);
    } else {
        const Value a = rotated.narrow(2, 0, pairs), b = rotated.narrow(2, pairs, pairs);
        turned = at::cat({a * cosines - b * sines, a * sines + b * cosines}, 2);
    }
    return at::cat({turned, rest}, 2).reshape(x.sizes());
}

void TorchOps::rope(size_t position, Value& q, Value& k) {
    const Rope& rope = config_.rope_of(position);
    q = rotate(rope, q);
    k = rotate(rope, k);
}

void TorchOps::rope(size_t position, Value& q) { q = rotate(config_.rope_of(position), q); }

// Query minus key position [tokens, keys].
TorchOps::Value TorchOps::distances() const {
    const auto tokens = static_cast<int64_t>(input_.tokens.size());
    return at::arange(input_.past, input_.past + tokens, at::kLong).unsqueeze(1) -
           at::arange(0, input_.past + tokens, at::kLong).unsqueeze(0);
}

const TorchOps::Value& TorchOps::hidden(int64_t window) {
    const auto [entry, is_new] = hidden_.try_emplace(window);
    Value& hidden = entry->second;
    if (!is_new) return hidden;
    const auto hide = [&](const Value& more) { hidden = hidden.defined() ? hidden.logical_or(more) : more; };
    if (window > 0 || (config_.causal && input_.tokens.size() > 1)) hide(distances() < 0);
    if (window > 0) hide(distances() >= window);
    if (!input_.mask.empty()) hide(copied(input_.mask, at::kLong).eq(0).unsqueeze(0));
    // Every token sees the prefix.
    if (config_.n_prefix > 0 && hidden.defined()) {
        const Value seen = at::zeros({hidden.size(0), config_.n_prefix}, at::kBool);
        hidden = at::cat({seen, hidden}, 1);
    }
    return hidden;
}

TorchOps::Value TorchOps::attend(size_t position, Value scores) {
    const int64_t queries = scores.size(1);
    const auto of_queries = [&](const Value& of_tokens) {  // the selected tokens are the last ones
        return of_tokens.size(0) == 1 ? of_tokens : of_tokens.narrow(0, of_tokens.size(0) - queries, queries);
    };
    if (config_.attention_softcap > 0) scores = softcap(scores, config_.attention_softcap);
    if (config_.max_alibi_bias > 0) {
        const auto slopes = alibi_slopes(config_.n_head, config_.max_alibi_bias);
        const Value per_head = copied(std::span(slopes), weights_.type()).reshape({-1, 1, 1});
        scores = scores - per_head * of_queries(distances()).abs();
    }
    const Value& hidden_keys = hidden(config_.window(position));
    if (!hidden_keys.defined()) return at::softmax(scores, -1);
    // Not -infinity: a query that sees no key would become NaN. It attends to nothing.
    const Value mask = of_queries(hidden_keys);
    const Value probabilities =
        at::softmax(scores.masked_fill(mask, std::numeric_limits<float>::lowest()), -1);
    return input_.mask.empty() ? probabilities : probabilities.masked_fill(mask, 0);
}

TorchOps::Value TorchOps::probabilities(size_t position, const Value& q, const Value& k) {
    const int64_t queries = q.size(0), keys = k.size(0), head_dim = config_.head_dim;
    const int64_t groups = config_.n_head_kv_of(position), per_group = config_.q_per_kv();
    // The query heads of a group are further queries to its keys.
    const Value q_groups = (q * config_.attention_scale_of(position))
                               .reshape({queries, groups, per_group, head_dim})
                               .permute({1, 2, 0, 3})
                               .reshape({groups, per_group * queries, head_dim});
    const Value k_groups = k.reshape({keys, groups, head_dim}).permute({1, 2, 0});
    return attend(position, at::bmm(q_groups, k_groups).reshape({groups * per_group, queries, keys}));
}

TorchOps::Value TorchOps::weighted(size_t position, const Value& probabilities, const Value& v) const {
    const int64_t n_head = probabilities.size(0), queries = probabilities.size(1), keys = v.size(0);
    const int64_t groups = config_.n_head_kv_of(position), head_dim = config_.head_dim;
    const Value v_groups = v.reshape({keys, groups, head_dim}).permute({1, 0, 2});
    return at::bmm(probabilities.reshape({groups, n_head / groups * queries, keys}), v_groups)
        .reshape({n_head, queries, head_dim})
        .permute({1, 0, 2})
        .reshape({queries, n_head * head_dim});
}

TorchOps::Value TorchOps::attention(size_t position, const Value& q, Value k, Value v) {
    if (cache_ != nullptr) std::tie(k, v) = cache_->append(position, input_.past, k, v);
    if (config_.n_prefix > 0) {
        k = at::cat({weights_.matrix(position, Slot::attn_prefix_k), k});
        v = at::cat({weights_.matrix(position, Slot::attn_prefix_v), v});
    }
    if (weights_.topology().lends_kv(position)) lent_kv_[position] = {k, v};
    const Value p = probabilities(position, q, k);
    if (weights_.topology().lends_probabilities(position)) lent_probabilities_[position] = p;
    return weighted(position, p, v);
}

TorchOps::Value TorchOps::attention_over_source(size_t position, const Value& q) {
    const auto& [k, v] = lent_kv_.at(*source(position).kv);
    return weighted(position, probabilities(position, q, k), v);
}

TorchOps::Value TorchOps::attention_as_source(size_t position, Value v, bool selected) {
    if (cache_ != nullptr) v = cache_->append(position, input_.past, v);
    const Value& p = lent_probabilities_.at(*source(position).probabilities);
    return weighted(position, selected ? p.narrow(1, p.size(1) - input_.outputs, input_.outputs) : p, v);
}

TorchOps::Value TorchOps::activate(Activation activation, const Value& x) const {
    switch (activation) {
        case Activation::silu: return at::silu(x);
        case Activation::gelu: return at::gelu(x);
        case Activation::gelu_tanh: return at::gelu(x, "tanh");
        case Activation::relu: return at::relu(x);
        case Activation::tanh: return at::tanh(x);
    }
    fail(ErrorCode::internal, "torch engine", "unknown activation");
}

TorchOps::Value TorchOps::gated(Activation activation, const Value& gate, const Value& up) const {
    return activate(activation, gate) * up;
}

TorchOps::Value TorchOps::add(const Value& a, const Value& b) const { return a + b; }
TorchOps::Value TorchOps::scale(const Value& x, float factor) const { return x * factor; }
TorchOps::Value TorchOps::softcap(const Value& x, float cap) const { return at::tanh(x / cap) * cap; }

TorchOps::Value TorchOps::divide_by_row_norms(Slot slot, const Value& x) const {
    return x / weights_.matrix(kModelPosition, slot).norm(2, {1});
}

TorchOps::Value TorchOps::select_outputs(const Value& x) const {
    return x.narrow(0, x.size(0) - input_.outputs, input_.outputs);
}

TorchOps::Value TorchOps::select_first(const Value& x) const { return x.narrow(0, 0, 1); }

ForwardResult<at::Tensor> torch_forward(const ModelConfig& config, const TorchWeights& weights,
                                        const StepInput& input, TorchCache* cache) {
    TorchOps ops(config, weights, input, cache);
    return forward(ops, config, weights.n_positions());
}

}  // namespace refold
