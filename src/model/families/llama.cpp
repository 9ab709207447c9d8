// Llama 1-3, TinyLlama, SmolLM and others that are stored as general.architecture "llama": RMSNorm before
// each module, rotary positions, grouped-query attention, SwiGLU.
#include "model/families/llama.h"

#include <array>
#include <cmath>

#include "core/error.h"

namespace refold {
namespace {

constexpr std::array kPositionSlots = {
    SlotDescription{Slot::attn_norm, "blk.{}.attn_norm.weight", true},
    SlotDescription{Slot::attn_q, "blk.{}.attn_q.weight", true},
    SlotDescription{Slot::attn_k, "blk.{}.attn_k.weight", true},
    SlotDescription{Slot::attn_v, "blk.{}.attn_v.weight", true},
    SlotDescription{Slot::attn_o, "blk.{}.attn_output.weight", true},
    SlotDescription{Slot::attn_q_bias, "blk.{}.attn_q.bias", false},
    SlotDescription{Slot::attn_k_bias, "blk.{}.attn_k.bias", false},
    SlotDescription{Slot::attn_v_bias, "blk.{}.attn_v.bias", false},
    SlotDescription{Slot::attn_o_bias, "blk.{}.attn_output.bias", false},
    SlotDescription{Slot::ffn_norm, "blk.{}.ffn_norm.weight", true},
    SlotDescription{Slot::ffn_gate, "blk.{}.ffn_gate.weight", true},
    SlotDescription{Slot::ffn_up, "blk.{}.ffn_up.weight", true},
    SlotDescription{Slot::ffn_down, "blk.{}.ffn_down.weight", true},
    SlotDescription{Slot::ffn_gate_bias, "blk.{}.ffn_gate.bias", false},
    SlotDescription{Slot::ffn_up_bias, "blk.{}.ffn_up.bias", false},
    SlotDescription{Slot::ffn_down_bias, "blk.{}.ffn_down.bias", false},
};
constexpr std::array kModelSlots = {
    SlotDescription{Slot::token_embd, "token_embd.weight", true},
    SlotDescription{Slot::output_norm, "output_norm.weight", true},
    SlotDescription{Slot::output, "output.weight", true, "token_embd.weight"},
    SlotDescription{Slot::rope_freqs, "rope_freqs.weight", false},
};

float positive(const GgufMetadata& metadata, const std::string& key, double fallback) {
    const double value = metadata.real(key, fallback);
    if (!(value > 0) || !std::isfinite(value))
        fail(ErrorCode::input, "llama", "key '{}' must be positive, got {}", key, value);
    return static_cast<float>(value);
}

// Keys and defaults as llama.cpp reads them: linear is the default type; of YaRN's magnitude factor
// 1 + 0.1 ln(scale) ggml's rope multiplies by itself, so only the extra `attn_factor` is kept here.
Rope read_rope(const GgufMetadata& metadata, int64_t head_dim, int64_t context_length) {
    const std::string prefix = "llama.rope.";
    Rope rope;
    const uint64_t dims = metadata.integer(prefix + "dimension_count", static_cast<uint64_t>(head_dim));
    if (dims == 0 || dims % 2 != 0 || dims > static_cast<uint64_t>(head_dim)) {
        fail(ErrorCode::input, "llama",
             "key 'llama.rope.dimension_count' must be even and at most {}, got {}", head_dim, dims);
    }
    rope.dims = static_cast<int>(dims);
    rope.base = positive(metadata, prefix + "freq_base", 10000.0);
    const std::string type = metadata.string(prefix + "scaling.type", "linear");
    double factor = metadata.real(prefix + "scaling.factor", 0.0);
    if (factor == 0.0) factor = metadata.real(prefix + "scale_linear", 0.0);
    if (factor < 0 || !std::isfinite(factor))
        fail(ErrorCode::input, "llama", "key 'llama.rope.scaling.factor' must be positive, got {}", factor);
    rope.original_context = static_cast<int>(
        metadata.integer(prefix + "scaling.original_context_length", static_cast<uint64_t>(context_length)));
    rope.beta_fast = positive(metadata, prefix + "scaling.yarn_beta_fast", 32.0);
    rope.beta_slow = positive(metadata, prefix + "scaling.yarn_beta_slow", 1.0);
    rope.attention_factor = positive(metadata, prefix + "scaling.attn_factor", 1.0);
    if (type == "none") return rope;
    if (type != "linear" && type != "yarn") {
        fail(ErrorCode::unsupported, "llama",
             "rope scaling type '{}' is not supported; known: none, linear, yarn", type);
    }
    if (factor != 0.0) rope.frequency_scale = static_cast<float>(1.0 / factor);
    if (type == "yarn") {
        rope.ext_factor = static_cast<float>(metadata.real(prefix + "scaling.yarn_ext_factor", 1.0));
        if (metadata.has(prefix + "scaling.yarn_log_multiplier")) {
            fail(ErrorCode::unsupported, "llama",
                 "key 'llama.rope.scaling.yarn_log_multiplier' is not supported");
        }
    }
    return rope;
}

ModelConfig read_config(const GgufMetadata& metadata) {
    const auto dimension = [&](const char* key) {
        const std::string full = std::string("llama.") + key;
        const uint64_t value = metadata.integer(full);
        if (value == 0 || value > (1U << 30))
            fail(ErrorCode::input, "llama", "key '{}' is out of range: {}", full, value);
        return static_cast<int64_t>(value);
    };
    if (const uint64_t experts = metadata.integer("llama.expert_count", 0); experts > 0) {
        fail(ErrorCode::unsupported, "llama",
             "mixture of experts is not supported (key 'llama.expert_count' is {})", experts);
    }
    ModelConfig c;
    c.family = "llama";
    c.n_embd = dimension("embedding_length");
    c.n_head = dimension("attention.head_count");
    c.n_head_kv = static_cast<int64_t>(
        metadata.integer("llama.attention.head_count_kv", static_cast<uint64_t>(c.n_head)));
    if (c.n_head_kv == 0 || c.n_head % c.n_head_kv != 0) {
        fail(ErrorCode::input, "llama",
             "key 'llama.attention.head_count' ({}) must be a multiple of 'llama.attention.head_count_kv' "
             "({})",
             c.n_head, c.n_head_kv);
    }
    if (!metadata.has("llama.attention.key_length") && c.n_embd % c.n_head != 0) {
        fail(ErrorCode::input, "llama",
             "key 'llama.embedding_length' ({}) is not a multiple of 'llama.attention.head_count' ({})",
             c.n_embd, c.n_head);
    }
    c.head_dim = static_cast<int64_t>(
        metadata.integer("llama.attention.key_length", static_cast<uint64_t>(c.n_embd / c.n_head)));
    const uint64_t value_length =
        metadata.integer("llama.attention.value_length", static_cast<uint64_t>(c.head_dim));
    if (c.head_dim <= 0 || c.head_dim > 4096 || value_length != static_cast<uint64_t>(c.head_dim)) {
        fail(ErrorCode::unsupported, "llama",
             "keys 'llama.attention.key_length' ({}) and 'llama.attention.value_length' ({}) must be equal",
             c.head_dim, value_length);
    }
    c.n_ff = dimension("feed_forward_length");
    c.context_length = dimension("context_length");
    c.norm_eps = positive(metadata, "llama.attention.layer_norm_rms_epsilon", 1e-5);
    c.rope = read_rope(metadata, c.head_dim, c.context_length);
    return c;
}

}  // namespace

const Family kLlamaFamily = {"llama", kPositionSlots, kModelSlots, read_config};

}  // namespace refold
