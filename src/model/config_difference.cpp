#include "model/config_difference.h"

#include <fmt/format.h>

#include <cmath>

namespace refold {
namespace {

// Files have float32 numbers, or decimals of them.
bool equal(double a, double b) {
    constexpr double kRounding = 1e-6;
    return a == b || std::abs(a - b) <= kRounding * std::max(std::abs(a), std::abs(b));
}
bool equal(int64_t a, int64_t b) { return a == b; }

class Comparison {
public:
    template <typename T>
    void compare(const char* field, T got, T expected) {
        if (!found_.empty()) return;
        bool same = false;
        if constexpr (std::is_floating_point_v<T>)
            same = equal(static_cast<double>(got), static_cast<double>(expected));
        else
            same = equal(static_cast<int64_t>(got), static_cast<int64_t>(expected));
        if (same) return;
        if constexpr (std::is_enum_v<T>)
            found_ = fmt::format("{}another {}", where_, field);
        else
            found_ = fmt::format("{}{} {} instead of {}", where_, field, got, expected);
    }
    void rope(const Rope& got, const Rope& expected) {
        compare("rotated dimensions", got.dims, expected.dims);
        if (expected.dims == 0) return;
        compare("RoPE layout", got.kind, expected.kind);
        compare("RoPE base", got.base, expected.base);
        compare("RoPE frequency scale", got.frequency_scale, expected.frequency_scale);
        compare("RoPE extension factor", got.ext_factor, expected.ext_factor);
        compare("RoPE attention factor", got.attention_factor, expected.attention_factor);
        compare("RoPE dynamic factor", got.dynamic_factor, expected.dynamic_factor);
        if (expected.ext_factor > 0) {
            compare("RoPE beta_fast", got.beta_fast, expected.beta_fast);
            compare("RoPE beta_slow", got.beta_slow, expected.beta_slow);
        }
        if (expected.ext_factor > 0 || expected.dynamic_factor > 0 || expected.long_factors)
            compare("RoPE original context", got.original_context, expected.original_context);
    }
    void in_layer(size_t layer) { where_ = fmt::format("layer {}: ", layer); }
    const std::string& found() const { return found_; }

private:
    std::string where_, found_;
};

void compare_layer(const ModelConfig& a, const ModelConfig& b, size_t l, Comparison& out) {
    out.in_layer(l);
    out.compare("key/value heads", a.n_head_kv_of(l), b.n_head_kv_of(l));
    if (b.n_expert_of(l) == 0) out.compare("FFN channels", a.n_ff_of(l), b.n_ff_of(l));
    out.compare("experts", a.n_expert_of(l), b.n_expert_of(l));
    out.compare("window", a.window(l), b.window(l));
    out.compare("cut of FFN gates", a.cuts_ffn(l), b.cuts_ffn(l));
    if (b.cuts_ffn(l)) out.compare("cut of FFN gates", a.ffn_cuts[l], b.ffn_cuts[l]);
    out.compare("numbered ALiBi heads", a.alibi_heads_of(l) == b.alibi_heads_of(l), true);
    out.rope(a.rope_of(l), b.rope_of(l));
}

}  // namespace

std::string config_difference(const ModelConfig& a, const ModelConfig& b, size_t layers) {
    Comparison out;
    out.compare("features", a.n_embd, b.n_embd);
    out.compare("query heads", a.n_head, b.n_head);
    out.compare("key/value heads", a.n_head_kv, b.n_head_kv);
    out.compare("features of a head", a.head_dim, b.head_dim);
    out.compare("tokens in the vocabulary", a.n_vocab, b.n_vocab);
    out.compare("features of the embedding", a.embedding_width(), b.embedding_width());
    out.compare("context length", a.context_length, b.context_length);
    out.compare("residual streams", a.n_stream, b.n_stream);
    out.compare("rank of LAuReL", a.n_laurel, b.n_laurel);
    out.compare("features of layer inputs", a.n_layer_input, b.n_layer_input);
    out.compare("first layer with shared keys and values", a.first_kv_shared, b.first_kv_shared);
    out.compare("experts", a.n_expert, b.n_expert);
    if (b.n_expert > 0) {
        out.compare("experts of a token", a.n_expert_used, b.n_expert_used);
        out.compare("channels of an expert", a.n_ff_expert, b.n_ff_expert);
        out.compare("normalized expert weights", a.norm_expert_weights, b.norm_expert_weights);
    }
    out.compare("kind of norm", a.norm, b.norm);
    out.compare("epsilon of norms", a.norm_eps, b.norm_eps);
    out.compare("activation", a.activation, b.activation);
    out.compare("parallel residual", a.parallel_residual, b.parallel_residual);
    out.compare("embedding scale", a.embedding_scale, b.embedding_scale);
    out.compare("residual scale", a.residual_scale, b.residual_scale);
    out.compare("causal attention", a.causal, b.causal);
    out.compare("attention scale", a.attention_scale, b.attention_scale);
    out.compare("attention scale by layer", a.scale_by_layer, b.scale_by_layer);
    out.compare("soft cap of attention", a.attention_softcap, b.attention_softcap);
    out.compare("ALiBi bias", a.max_alibi_bias, b.max_alibi_bias);
    out.compare("norm after RoPE", a.norm_after_rope, b.norm_after_rope);
    out.compare("norm by head", a.norm_by_head, b.norm_by_head);
    out.compare("norm of values", a.norm_values, b.norm_values);
    out.compare("prefix length", a.n_prefix, b.n_prefix);
    out.compare("learned positions", a.n_learned_positions, b.n_learned_positions);
    out.compare("token types", a.n_token_types, b.n_token_types);
    out.compare("padding token", a.padding_token.value_or(-1), b.padding_token.value_or(-1));
    out.compare("normalized output rows", a.norm_head, b.norm_head);
    out.compare("logit scale", a.logit_scale, b.logit_scale);
    out.compare("soft cap of logits", a.logit_softcap, b.logit_softcap);
    for (size_t l = 0; l < layers; ++l) compare_layer(a, b, l, out);
    return out.found();
}

}  // namespace refold
