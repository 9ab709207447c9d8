// The definition of the forward pass in plain loops: double precision, no cache, all tokens at once. Slow,
// and written apart from src/: engines are checked against it.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "model/materialize.h"
#include "model/model.h"
#include "model/tap.h"

namespace refold::reference {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;  // [rows][columns]; activations: [tokens][features]

struct Input {
    std::vector<int32_t> tokens;
    std::vector<int32_t> token_types;  // empty: all 0
    std::vector<int32_t> mask;         // 0 hides the token from all tokens; empty: none hidden
    // Whether an evicted key is hidden from a query head at a layer; null: none.
    std::function<bool(size_t layer, int64_t head, size_t query, size_t key)> evicted = nullptr;
};

// By layer and place; rows are tokens, and of probabilities those of one head after the other.
using Taps = std::map<std::pair<size_t, Tap>, Matrix>;

struct Output {
    Matrix residual;  // after the last layer
    Matrix hidden;    // after the final norm
    Matrix logits;    // empty without an output matrix
    Vector pooled;    // empty without a pooler
    Vector score;     // [1], or empty
    Taps taps;
    std::map<size_t, std::vector<Matrix>> probabilities = {};  // [heads][tokens][keys], where computed
};

inline double activate(Activation activation, double x) {
    switch (activation) {
        case Activation::silu: return x / (1 + std::exp(-x));
        case Activation::gelu: return x * 0.5 * (1 + std::erf(x / std::numbers::sqrt2));
        case Activation::gelu_tanh:
            return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
        case Activation::relu: return std::max(0.0, x);
        case Activation::relu_squared: return std::max(0.0, x) * std::max(0.0, x);
        case Activation::tanh: return std::tanh(x);
        case Activation::swiglu_clamped: break;  // of two maps
    }
    return NAN;
}

inline double softcap(double x, double cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

inline double dot(const Vector& a, const Vector& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

inline Matrix sum(Matrix a, const Matrix& b) {
    for (size_t t = 0; t < a.size(); ++t) {
        for (size_t i = 0; i < a[t].size(); ++i) a[t][i] += b[t][i];
    }
    return a;
}

// RMS or layer normalization of x, times the weight, plus the bias (empty: none).
inline Vector normalize(const Vector& x, NormKind kind, double eps, const Vector& weight,
                        const Vector& bias) {
    const auto n = static_cast<double>(x.size());
    double mean = 0, squares = 0;
    if (kind == NormKind::layer) {
        for (const double value : x) mean += value / n;
    }
    for (const double value : x) squares += (value - mean) * (value - mean) / n;
    Vector out(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
        out[i] = (x[i] - mean) / std::sqrt(squares + eps) * weight[i] + (bias.empty() ? 0 : bias[i]);
    }
    return out;
}

// Share of its own frequency that YaRN leaves to a pair: 1 for the fast ones, 0 for the slow ones.
inline double yarn_share(const Rope& rope, double base, int pair) {
    const auto pair_turning = [&](double turns) {
        return rope.dims * std::log(rope.original_context / (turns * 2 * std::numbers::pi)) /
               (2 * std::log(base));
    };
    const double first = std::max(0.0, std::floor(pair_turning(rope.beta_fast)));
    const double last = std::min(rope.dims - 1.0, std::ceil(pair_turning(rope.beta_slow)));
    const double along = (pair - first) / std::max(0.001, last - first);
    return 1 - std::min(1.0, std::max(0.0, along));
}

// Rotates one head's vector, in place. `factors` divide the pairs' angles (empty: 1).
inline void rotate(double* head, const Rope& rope, int position, int64_t sequence_length,
                   const Vector& factors) {
    double base = rope.base;
    if (rope.dynamic_factor > 0 && sequence_length > rope.original_context) {
        const double stretch =
            rope.dynamic_factor * static_cast<double>(sequence_length) / rope.original_context -
            (rope.dynamic_factor - 1.0);
        base = static_cast<float>(base * std::pow(stretch, rope.dims / (rope.dims - 2.0)));
    }
    double magnitude = rope.attention_factor;
    if (rope.ext_factor != 0) magnitude *= 1 + 0.1 * std::log(1.0 / rope.frequency_scale);
    const int pairs = rope.dims / 2;
    for (int i = 0; i < pairs; ++i) {
        const double full = position * std::pow(base, -2.0 * i / rope.dims) /
                            (factors.empty() ? 1.0 : factors[static_cast<size_t>(i)]);
        double angle = full * rope.frequency_scale;
        if (rope.ext_factor != 0) {
            const double share = rope.ext_factor * yarn_share(rope, base, i);
            angle = angle * (1 - share) + full * share;
        }
        const bool interleaved = rope.kind == RopeKind::interleaved;
        double& a = head[interleaved ? 2 * i : i];
        double& b = head[interleaved ? 2 * i + 1 : i + pairs];
        const double turned_a = magnitude * (a * std::cos(angle) - b * std::sin(angle));
        b = magnitude * (a * std::sin(angle) + b * std::cos(angle));
        a = turned_a;
    }
}

// ALiBi's slope of a head of a layer. The heads beyond the largest power of two take every other slope of
// twice as many. Heads keep their slopes when others are left out.
inline double alibi_slope(const ModelConfig& config, size_t layer, int64_t head) {
    if (const auto& kept = config.alibi_heads_of(layer); !kept.empty()) {
        const int64_t group = config.q_per_kv();
        head = kept[static_cast<size_t>(head / group)] * group + head % group;
    }
    int64_t power = 1;
    while (power * 2 <= config.n_head) power *= 2;
    const double step = static_cast<double>(config.max_alibi_bias) / static_cast<double>(power);
    if (head < power) return std::pow(2.0, -step * static_cast<double>(head + 1));
    return std::pow(2.0, -step / 2 * static_cast<double>(2 * (head - power) + 1));
}

// RoBERTa's positions follow the padding token's, which all padding has.
inline std::vector<int32_t> positions_of(const ModelConfig& config, const std::vector<int32_t>& tokens) {
    std::vector<int32_t> positions;
    int32_t next = config.padding_token ? *config.padding_token + 1 : 0;
    for (const int32_t token : tokens) {
        const bool padding = config.padding_token && token == *config.padding_token;
        positions.push_back(padding ? token : next++);
    }
    return positions;
}

class Reference {
public:
    Reference(const Model& model, const Input& input)
        : model_(model),
          config_(model.config),
          input_(input),
          positions_(positions_of(config_, input.tokens)) {}

    Output run() {
        const bool streams = config_.n_stream > 1;
        Matrix x = streams ? streams_of(embeddings()) : embeddings();
        for (size_t p = 0; p < model_.topology.layers.size(); ++p)
            x = streams ? layer_of_streams(p, x) : plain_layer(p, x);
        const Matrix residual = x;
        if (streams) x = merged_streams(x);
        x = norm(kWholeModel, Slot::output_norm, x);
        const Slots& globals = model_.topology.globals;
        Output out{residual, x, {}, {}, {}, {}};
        if (globals.contains(Slot::output)) {
            out.logits = logits(x);
            note(kWholeModel, Tap::logits, out.logits);
        }
        if (globals.contains(Slot::pooler))
            out.pooled = activated(Activation::tanh, linear(kWholeModel, Slot::pooler, {x.front()})).front();
        if (globals.contains(Slot::score)) out.score = linear(kWholeModel, Slot::score, {out.pooled}).front();
        out.taps = std::move(taps_);
        out.probabilities = std::move(probabilities_);
        return out;
    }

private:
    const Slots& slots(size_t p) const {
        return p == kWholeModel ? model_.topology.globals : model_.topology.layers[p];
    }

    bool has(size_t p, Slot slot) const { return slots(p).contains(slot); }

    Matrix weight(size_t p, Slot slot) const {
        const SlotShape shape = slot_shape(slot, config_, p);
        const auto values = materialize(model_, slots(p).at(slot), slot, p);
        Matrix rows;
        for (int64_t r = 0; r < shape.out; ++r)
            rows.emplace_back(values.begin() + r * shape.in, values.begin() + (r + 1) * shape.in);
        return rows;
    }

    // Empty when there is none.
    Vector vector(size_t p, std::optional<Slot> slot) const {
        return slot && has(p, *slot) ? weight(p, *slot).front() : Vector();
    }

    Matrix linear(size_t p, Slot slot, const Matrix& x) const {
        const Matrix rows = weight(p, slot);
        const Vector bias = vector(p, bias_of(slot));
        Matrix out;
        for (const Vector& token : x) {
            Vector& y = out.emplace_back();
            for (size_t r = 0; r < rows.size(); ++r)
                y.push_back(dot(rows[r], token) + (bias.empty() ? 0 : bias[r]));
        }
        return out;
    }

    // Each group of as many features as the weight has is normalized by itself; where heads have gains of
    // their own and are normalized by themselves, each head. Nothing without the slot.
    Matrix norm(size_t p, Slot slot, Matrix x) const {
        if (!has(p, slot)) return x;
        const Vector weight = vector(p, slot), bias = vector(p, bias_of(slot));
        const bool all = slot == Slot::attn_q_norm_all || slot == Slot::attn_k_norm_all;
        const auto width =
            all && config_.norm_by_head ? config_.head_dim : static_cast<ptrdiff_t>(weight.size());
        for (Vector& token : x) {
            for (auto group = token.begin(); group != token.end(); group += width) {
                const auto own =
                    weight.begin() + (group - token.begin()) % static_cast<ptrdiff_t>(weight.size());
                const Vector normed = normalize({group, group + width}, config_.norm, config_.norm_eps,
                                                {own, own + width}, bias);
                std::copy(normed.begin(), normed.end(), group);
            }
        }
        return x;
    }

    static Matrix activated(Activation activation, Matrix x) {
        for (Vector& token : x) {
            for (double& value : token) value = activate(activation, value);
        }
        return x;
    }

    Matrix embeddings() const {
        Matrix x;
        const Matrix table = weight(kWholeModel, Slot::token_embd);
        for (const int32_t token : input_.tokens) {
            x.push_back(table[static_cast<size_t>(token)]);
            for (double& value : x.back()) value *= config_.embedding_scale;
        }
        const auto add = [&](Slot slot, const std::vector<int32_t>& rows) {
            if (!has(kWholeModel, slot)) return;
            const Matrix added = weight(kWholeModel, slot);
            for (size_t t = 0; t < x.size(); ++t) {
                const size_t row = rows.empty() ? 0 : static_cast<size_t>(rows[t]);
                for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += added[row][i];
            }
        };
        add(Slot::token_types, input_.token_types);
        add(Slot::position_embd, positions_);
        x = norm(kWholeModel, Slot::embd_norm, x);
        return has(kWholeModel, Slot::embd_map) ? linear(kWholeModel, Slot::embd_map, x) : x;
    }

    // ---- several residual streams and inputs of layers (Gemma 3n) ----

    static constexpr float kHalfRoot = 0.70710678F;

    // Features [first, first + count) of every token.
    static Matrix part(const Matrix& x, size_t first, size_t count) {
        Matrix out;
        for (const Vector& token : x)
            out.emplace_back(token.begin() + static_cast<ptrdiff_t>(first),
                             token.begin() + static_cast<ptrdiff_t>(first + count));
        return out;
    }
    Matrix stream(const Matrix& x, size_t s) const {
        const auto width = static_cast<size_t>(config_.n_embd);
        return part(x, s * width, width);
    }
    static Matrix times(Matrix x, double factor) {
        for (Vector& token : x) {
            for (double& value : token) value *= factor;
        }
        return x;
    }

    // x with the root mean square of y.
    static Matrix brought_to(Matrix x, const Matrix& y) {
        for (size_t t = 0; t < x.size(); ++t) {
            const double own = dot(x[t], x[t]) / static_cast<double>(x[t].size()),
                         wanted = dot(y[t], y[t]) / static_cast<double>(y[t].size());
            for (double& value : x[t]) value *= std::sqrt(wanted / std::max(own, 1.0 * 1e-5F));
        }
        return x;
    }

    Matrix streams_of(const Matrix& x) {
        const auto n = static_cast<size_t>(config_.n_stream);
        const Matrix added = linear(kWholeModel, Slot::streams_in, x);
        Matrix out = x;
        for (size_t s = 0; s + 1 < n; ++s) {
            const Matrix more = brought_to(stream(added, s), x);
            for (size_t t = 0; t < x.size(); ++t) out[t].insert(out[t].end(), more[t].begin(), more[t].end());
        }
        const float root = std::sqrt(static_cast<float>(config_.n_layer_input)),
                    part_of_map = 1.0F / std::sqrt(static_cast<float>(config_.n_embd));
        const Matrix table = weight(kWholeModel, Slot::layer_input_embd);
        layer_inputs_ = norm(kWholeModel, Slot::layer_input_norm,
                             times(linear(kWholeModel, Slot::layer_input_map, x), part_of_map));
        for (size_t t = 0; t < x.size(); ++t) {
            const Vector& row = table[static_cast<size_t>(input_.tokens[t])];
            for (size_t i = 0; i < row.size(); ++i)
                layer_inputs_[t][i] = (layer_inputs_[t][i] + row[i] * root) * kHalfRoot;
        }
        return out;
    }

    Matrix merged_streams(const Matrix& x) const {
        const auto n = static_cast<size_t>(config_.n_stream), width = static_cast<size_t>(config_.n_embd);
        const Matrix maps = weight(kWholeModel, Slot::streams_out);
        Matrix sums = stream(x, 0);
        for (size_t s = 1; s < n; ++s) {
            Matrix own = stream(x, s);
            for (Vector& token : own) {
                Vector y;
                for (size_t r = 0; r < width; ++r) y.push_back(dot(maps[(s - 1) * width + r], token));
                token = y;
            }
            sums = sum(sums, brought_to(own, stream(x, 0)));
        }
        return times(sums, 1.0F / static_cast<float>(n));
    }

    Matrix stream_coefficients(size_t p, Slot slot, const Matrix& x) const {
        const float part_of_norm = 1.0F / static_cast<float>(config_.n_embd);
        const Matrix scores =
            linear(p, Slot::stream_router, times(norm(p, Slot::stream_router_norm, x), part_of_norm));
        return linear(p, slot, activated(Activation::tanh, scores));
    }

    Matrix layer_of_streams(size_t p, const Matrix& x) {
        const auto n = static_cast<size_t>(config_.n_stream), width = static_cast<size_t>(config_.n_embd),
                   features = static_cast<size_t>(config_.n_layer_input);
        Matrix predicted = x;
        const Matrix c = stream_coefficients(p, Slot::stream_predict, stream(x, 0));
        for (size_t t = 0; t < x.size(); ++t) {
            for (size_t b = 0; b < n; ++b) {
                for (size_t a = 0; a < n; ++a) {
                    for (size_t i = 0; i < width; ++i)
                        predicted[t][b * width + i] += c[t][b * n + a] * x[t][a * width + i];
                }
            }
        }
        const Matrix active = plain_layer(p, stream(predicted, 0));
        const Matrix gains = stream_coefficients(p, Slot::stream_correct, active);
        Matrix out = predicted;
        for (size_t t = 0; t < x.size(); ++t) {
            for (size_t i = 0; i < n * width; ++i)
                out[t][i] += (gains[t][i / width] + 1) * (active[t][i % width] - predicted[t][i % width]);
        }
        Matrix first = stream(out, 0);
        const Vector scale = vector(p, Slot::layer_input_scale);
        for (Vector& token : first) {
            for (size_t i = 0; i < width; ++i) token[i] *= scale[i];
        }
        Matrix gate = activated(config_.activation, linear(p, Slot::layer_input_gate, first));
        for (size_t t = 0; t < x.size(); ++t) {
            for (size_t i = 0; i < features; ++i) gate[t][i] *= layer_inputs_[t][p * features + i];
        }
        const Matrix added = norm(p, Slot::layer_input_post_norm, linear(p, Slot::layer_input_up, gate));
        for (size_t t = 0; t < x.size(); ++t) {
            for (size_t i = width; i < n * width; ++i) out[t][i] += added[t][i % width];
        }
        return out;
    }

    // (x + normed + its map of low rank) / sqrt(2)
    Matrix with_laurel(size_t p, const Matrix& x, const Matrix& normed) const {
        if (!has(p, Slot::laurel_down)) return x;
        const Matrix map =
            norm(p, Slot::laurel_norm, linear(p, Slot::laurel_up, linear(p, Slot::laurel_down, normed)));
        return times(sum(x, sum(normed, map)), kHalfRoot);
    }

    // Gates above the mean by more than so many deviations.
    void cut_gates(size_t p, Matrix& gate) const {
        if (p >= config_.ffn_cuts.size() || !std::isfinite(config_.ffn_cuts[p])) return;
        for (Vector& token : gate) {
            double mean = 0, squares = 0;
            for (const double value : token) mean += value / static_cast<double>(token.size());
            for (const double value : token)
                squares += (value - mean) * (value - mean) / static_cast<double>(token.size());
            const double least = mean + config_.ffn_cuts[p] * std::sqrt(squares);
            for (double& value : token) value = std::max(0.0, value - least);
        }
    }

    // RMS norm of each head without a gain.
    Matrix value_norm(Matrix v) const {
        if (!config_.norm_values) return v;
        const Vector ones(static_cast<size_t>(config_.head_dim), 1.0);
        for (Vector& token : v) {
            for (auto head = token.begin(); head != token.end(); head += config_.head_dim) {
                const Vector normed =
                    normalize({head, head + config_.head_dim}, NormKind::rms, config_.norm_eps, ones, {});
                std::copy(normed.begin(), normed.end(), head);
            }
        }
        return v;
    }

    const Matrix& note(size_t p, Tap tap, const Matrix& x) { return taps_[{p, tap}] = x; }

    // W_c of one place times x, added where the layer has it.
    Matrix compensated(size_t p, Slot slot, Matrix to, const Matrix& x) const {
        return has(p, slot) ? sum(std::move(to), linear(p, slot, x)) : to;
    }

    // A module that the layer lacks adds nothing.
    Matrix plain_layer(size_t p, const Matrix& x) {
        const bool attends = config_.n_head_kv_of(p) > 0, feeds = config_.n_ff_of(p) > 0;
        note(p, Tap::layer_input, x);
        const Matrix normed = note(p, Tap::attn_input, norm(p, Slot::attn_norm, x));
        Matrix between = x;
        if (attends) {
            const Matrix attended = scaled(norm(p, Slot::attn_post_norm, attention(p, normed)));
            between = sum(between, note(p, Tap::attn_output, attended));
        }
        between = compensated(p, Slot::attn_comp, between, normed);
        if (config_.parallel_residual) {
            // One norm may serve both modules.
            const Matrix input = has(p, Slot::ffn_norm) ? norm(p, Slot::ffn_norm, x) : normed;
            if (feeds) between = sum(between, feed_forward(p, input));
            return compensated(p, Slot::attn_comp_ffn, between, normed);
        }
        between = with_laurel(p, between, normed);
        between = note(p, Tap::residual, norm(p, Slot::attn_output_norm, between));
        if (feeds) between = sum(between, feed_forward(p, norm(p, Slot::ffn_norm, between)));
        between = compensated(p, Slot::attn_comp_ffn, between, normed);
        return norm(p, Slot::ffn_output_norm, between);
    }

    Matrix feed_forward(size_t p, const Matrix& x) {
        note(p, Tap::ffn_input, x);
        if (has(p, Slot::ffn_router)) {
            const Matrix projected = note(p, Tap::ffn_projected, mixture_of_experts(p, x));
            return note(p, Tap::ffn_output, scaled(norm(p, Slot::ffn_post_norm, projected)));
        }
        Matrix inner = linear(p, Slot::ffn_up, x);
        if (has(p, Slot::ffn_gate)) {
            Matrix gate = linear(p, Slot::ffn_gate, x);
            cut_gates(p, gate);
            gate = activated(config_.activation, gate);
            for (size_t t = 0; t < inner.size(); ++t) {
                for (size_t i = 0; i < inner[t].size(); ++i) inner[t][i] *= gate[t][i];
            }
        } else {
            inner = activated(config_.activation, inner);
        }
        note(p, Tap::ffn_inner, inner);
        const Matrix projected = note(p, Tap::ffn_projected, linear(p, Slot::ffn_down, inner));
        return note(p, Tap::ffn_output, scaled(norm(p, Slot::ffn_post_norm, projected)));
    }

    // The experts with the largest scores, weighted by the softmax of the scores.
    Matrix mixture_of_experts(size_t p, const Matrix& x) {
        const Matrix scores = linear(p, Slot::ffn_router, x);
        const Matrix gate = linear(p, Slot::ffn_gate_exps, x), up = linear(p, Slot::ffn_up_exps, x);
        const Matrix down = weight(p, Slot::ffn_down_exps);
        const Vector bias = vector(p, Slot::ffn_down_exps_bias);
        const auto width = static_cast<size_t>(config_.n_ff_expert),
                   embd = static_cast<size_t>(config_.n_embd);
        Matrix out(x.size(), Vector(embd));
        for (size_t t = 0; t < x.size(); ++t) {
            std::vector<size_t> order(scores[t].size());
            std::iota(order.begin(), order.end(), size_t{0});
            std::sort(order.begin(), order.end(),
                      [&](size_t a, size_t b) { return scores[t][a] > scores[t][b]; });
            const auto used = static_cast<size_t>(config_.n_expert_used);
            double total = 0;
            for (size_t i = 0; i < (config_.norm_expert_weights ? used : order.size()); ++i)
                total += std::exp(scores[t][order[i]]);
            for (size_t i = 0; i < used; ++i) {
                const size_t expert = order[i];
                Vector inner;
                for (size_t c = 0; c < width; ++c)
                    inner.push_back(gated(gate[t][expert * width + c], up[t][expert * width + c]));
                for (size_t r = 0; r < embd; ++r) {
                    const double own = bias.empty() ? 0 : bias[expert * embd + r];
                    out[t][r] +=
                        std::exp(scores[t][expert]) / total * (dot(down[expert * embd + r], inner) + own);
                }
            }
        }
        return out;
    }

    double gated(double gate, double up) const {
        if (config_.activation != Activation::swiglu_clamped) return activate(config_.activation, gate) * up;
        const double limit = kSwigluLimit, g = std::min(gate, limit);
        return g / (1 + std::exp(-static_cast<double>(kSwigluAlpha) * g)) *
               (std::clamp(up, -limit, limit) + 1);
    }

    // What a module adds to the residual stream.
    Matrix scaled(Matrix x) const {
        for (Vector& token : x) {
            for (double& value : token) value *= config_.residual_scale;
        }
        return x;
    }

    void rotate_heads(size_t p, Matrix& x) const {
        const bool local = config_.local_rope && config_.window(p) > 0;
        const Rope& rope = local ? *config_.local_rope : config_.rope;
        if (!config_.rotated.empty() && !config_.rotated[p % config_.rotated.size()]) return;
        const bool is_long = rope.long_factors && static_cast<int>(x.size()) > rope.original_context;
        const Vector factors =
            local ? Vector() : vector(kWholeModel, is_long ? Slot::rope_freqs_long : Slot::rope_freqs);
        for (size_t t = 0; t < x.size() && rope.dims > 0; ++t) {
            for (size_t at = 0; at < x[t].size(); at += static_cast<size_t>(config_.head_dim))
                rotate(&x[t][at], rope, positions_[t], static_cast<int64_t>(x.size()), factors);
        }
    }

    // Norms of layer p, rotation of layer `rotation`.
    void norm_and_rotate(size_t p, size_t rotation, const std::vector<Slot>& norms, Matrix& x) const {
        if (config_.norm_after_rope) rotate_heads(rotation, x);
        for (const Slot slot : norms) x = norm(p, slot, x);
        if (!config_.norm_after_rope) rotate_heads(rotation, x);
    }

    // Keys count from the first row of the prefix, which every token sees.
    bool sees(size_t p, size_t query, size_t key) const {
        const auto prefix = static_cast<size_t>(config_.n_prefix);
        if (key < prefix) return true;
        key -= prefix;
        if (!input_.mask.empty() && input_.mask[key] == 0) return false;
        const auto window = static_cast<size_t>(config_.window(p));
        if ((config_.causal || window > 0) && key > query) return false;
        return window == 0 || query < key + window;
    }

    // The prefix's rows before those of the tokens: as they are, or made of vectors by the layer's maps.
    Matrix behind_prefix(size_t p, Slot slot, const Matrix& x) const {
        if (config_.n_prefix == 0) return x;
        Matrix rows;
        if (!has(p, Slot::attn_prefix)) {
            rows = weight(p, slot);
        } else if (slot == Slot::attn_prefix_k) {
            rows = norm(p, Slot::attn_k_norm_all,
                        norm(p, Slot::attn_k_norm, linear(p, Slot::attn_k, weight(p, Slot::attn_prefix))));
        } else {
            rows = linear(p, Slot::attn_v, weight(p, Slot::attn_prefix));
        }
        rows.insert(rows.end(), x.begin(), x.end());
        return rows;
    }

    Matrix attention(size_t p, const Matrix& x) {
        const Matrix inner = compensated(p, Slot::attn_comp_o, attended_values(p, x), x);
        note(p, Tap::attn_inner, inner);
        return note(p, Tap::attn_projected,
                    compensated(p, Slot::attn_comp_norm, linear(p, Slot::attn_o, inner), x));
    }

    // Heads beside each other, before attn.o.
    Matrix attended_values(size_t p, const Matrix& x) {
        const auto entry = model_.topology.sources.find(p);
        const AttentionSource source =
            entry == model_.topology.sources.end() ? AttentionSource{} : entry->second;
        if (source.probabilities) {
            // Equation 3 of UniAttn: the source's probabilities, own values.
            const Matrix v = note(p, Tap::v, value_norm(linear(p, Slot::attn_v, x)));
            return compensated(p, Slot::attn_comp_v, weighted(p, probabilities_.at(*source.probabilities), v),
                               v);
        }
        const size_t lender = source.kv.value_or(p);
        Matrix q = linear(p, Slot::attn_q, x);
        norm_and_rotate(p, lender, {Slot::attn_q_norm, Slot::attn_q_norm_all}, q);
        note(p, Tap::q, q);
        if (lender == p) {
            Matrix k = linear(p, Slot::attn_k, x);
            norm_and_rotate(p, p, {Slot::attn_k_norm, Slot::attn_k_norm_all}, k);
            const Matrix v = value_norm(linear(p, Slot::attn_v, x));
            note(p, Tap::k, k);
            note(p, Tap::v, v);
            keys_[p] = behind_prefix(p, Slot::attn_prefix_k, k);
            values_[p] = behind_prefix(p, Slot::attn_prefix_v, v);
        }
        const PerHead& p_own = probabilities_[p] = probabilities(p, q, keys_.at(lender));
        if (lender == p) {
            Matrix rows;
            for (const Matrix& head : p_own) rows.insert(rows.end(), head.begin(), head.end());
            note(p, Tap::probabilities, rows);
        }
        return weighted(p, p_own, values_.at(lender));
    }

    using PerHead = std::vector<Matrix>;  // [heads][tokens][keys]

    int64_t queries_per_key() const { return config_.n_head / config_.n_head_kv; }

    PerHead probabilities(size_t p, const Matrix& q, const Matrix& k) const {
        PerHead out;
        for (int64_t h = 0; h < queries_per_key() * config_.n_head_kv_of(p); ++h) {
            Matrix& head = out.emplace_back();
            for (size_t i = 0; i < q.size(); ++i) head.push_back(probabilities(p, i, h, q, k));
        }
        return out;
    }

    // One head of one query; 0 for keys that it does not see.
    Vector probabilities(size_t p, size_t i, int64_t h, const Matrix& q, const Matrix& k) const {
        const auto d = static_cast<size_t>(config_.head_dim);
        const size_t at = static_cast<size_t>(h) * d;
        const size_t kv_at = static_cast<size_t>(h / queries_per_key()) * d;
        Vector out(k.size(), -INFINITY);
        double largest = -INFINITY, total = 0;
        for (size_t j = 0; j < k.size(); ++j) {
            if (!sees(p, i, j) || (input_.evicted && input_.evicted(p, h, i, j))) continue;
            double score = 0;
            for (size_t c = 0; c < d; ++c) score += q[i][at + c] * k[j][kv_at + c];
            score =
                softcap(score * (config_.scale_by_layer ? config_.attention_scale / static_cast<float>(p + 1)
                                                        : config_.attention_scale),
                        config_.attention_softcap);
            if (config_.max_alibi_bias > 0)
                score -=
                    alibi_slope(config_, p, h) * std::abs(static_cast<double>(i) - static_cast<double>(j));
            out[j] = score;
            largest = std::max(largest, score);
        }
        if (largest == -INFINITY) return Vector(k.size());
        if (const Vector sinks = vector(p, Slot::attn_sinks); !sinks.empty())
            total = std::exp(sinks[static_cast<size_t>(h)] - largest);
        for (double& score : out) total += score = std::exp(score - largest);
        for (double& score : out) score /= total;
        return out;
    }

    // For every token and head the sum of the values times their probabilities.
    Matrix weighted(size_t p, const PerHead& probabilities, const Matrix& v) const {
        const auto d = static_cast<size_t>(config_.head_dim);
        const size_t heads = static_cast<size_t>(queries_per_key() * config_.n_head_kv_of(p));
        Matrix out(probabilities.front().size(), Vector(heads * d));
        for (size_t h = 0; h < heads; ++h) {
            const size_t kv_at = h / static_cast<size_t>(queries_per_key()) * d;
            for (size_t i = 0; i < out.size(); ++i) {
                for (size_t j = 0; j < v.size(); ++j) {
                    for (size_t c = 0; c < d; ++c)
                        out[i][h * d + c] += probabilities[h][i][j] * v[j][kv_at + c];
                }
            }
        }
        return out;
    }

    Matrix logits(Matrix x) const {
        if (has(kWholeModel, Slot::head_dense)) {
            x = activated(config_.activation, linear(kWholeModel, Slot::head_dense, x));
            x = norm(kWholeModel, Slot::head_norm, x);
        }
        Matrix out = linear(kWholeModel, Slot::output, x);
        const Matrix rows = weight(kWholeModel, Slot::output);
        for (Vector& token : out) {
            for (size_t r = 0; r < token.size(); ++r) {
                if (config_.norm_head) token[r] /= std::sqrt(dot(rows[r], rows[r]));
                token[r] = softcap(token[r] * config_.logit_scale, config_.logit_softcap);
            }
        }
        return out;
    }

    const Model& model_;
    const ModelConfig& config_;
    const Input& input_;
    std::vector<int32_t> positions_;
    Taps taps_;
    // By layer, the prefix included: what other layers may use.
    std::map<size_t, PerHead> probabilities_;
    std::map<size_t, Matrix> keys_, values_;
    Matrix layer_inputs_;  // of all layers
};

inline Output run(const Model& model, const Input& input) { return Reference(model, input).run(); }

// Row-major values as engines give them.
inline std::vector<float> flat(const Matrix& x) {
    std::vector<float> out;
    for (const Vector& row : x) out.insert(out.end(), row.begin(), row.end());
    return out;
}

}  // namespace refold::reference
