// Llama 1-3, TinyLlama, SmolLM, Mistral and others that are stored as general.architecture "llama": RMSNorm
// before each module, rotary positions, grouped-query attention, SwiGLU; Mistral's sliding window.
#include "core/error.h"
#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold {
namespace {

constexpr const char* kName = "llama";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::interleaved);
    c.windows = read_windows(keys, 0);
    return c;
}

void read_hf_config(const nlohmann::json& json, GgufMetadata& metadata) {
    const HfConfig config(json);
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, 1e-6, out);
    write_rope(config, 10000.0, out);
    if (config.string("model_type", "") == "mistral" && config.has("sliding_window")) {
        write_windows(config.integer("sliding_window"),
                      layers_with_window(config, [](size_t) { return true; }), out);
    }
}

nlohmann::json write_hf_config(const Model& model) {
    const ModelConfig& c = model.config;
    const bool mistral = !c.windows.empty();
    nlohmann::json out = hf_common(model, {}, mistral ? "MistralForCausalLM" : "LlamaForCausalLM",
                                   mistral ? "mistral" : "llama");
    hf_rope(model, out);
    if (mistral) {
        out["sliding_window"] = c.windows.front();
    } else {
        out["attention_bias"] = model.topology.has(0, Slot::attn_q_bias);
        out["mlp_bias"] = model.topology.has(0, Slot::ffn_up_bias);
    }
    return out;
}

}  // namespace

extern const Family llama_family;
const Family llama_family = {
    .name = kName,
    .layer_slots =
        {
            {Slot::attn_norm, "blk.{}.attn_norm.weight", true, "@layers.{}.input_layernorm.weight"},
            {Slot::attn_q, "blk.{}.attn_q.weight", true, "@layers.{}.self_attn.q_proj.weight", hf_rotary},
            {Slot::attn_k, "blk.{}.attn_k.weight", true, "@layers.{}.self_attn.k_proj.weight", hf_rotary},
            {Slot::attn_v, "blk.{}.attn_v.weight", true, "@layers.{}.self_attn.v_proj.weight"},
            {Slot::attn_o, "blk.{}.attn_output.weight", true, "@layers.{}.self_attn.o_proj.weight"},
            {Slot::attn_q_bias, "blk.{}.attn_q.bias", false, "@layers.{}.self_attn.q_proj.bias", hf_rotary},
            {Slot::attn_k_bias, "blk.{}.attn_k.bias", false, "@layers.{}.self_attn.k_proj.bias", hf_rotary},
            {Slot::attn_v_bias, "blk.{}.attn_v.bias", false, "@layers.{}.self_attn.v_proj.bias"},
            {Slot::attn_o_bias, "blk.{}.attn_output.bias", false, "@layers.{}.self_attn.o_proj.bias"},
            {Slot::ffn_norm, "blk.{}.ffn_norm.weight", true, "@layers.{}.post_attention_layernorm.weight"},
            {Slot::ffn_gate, "blk.{}.ffn_gate.weight", true, "@layers.{}.mlp.gate_proj.weight"},
            {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@layers.{}.mlp.up_proj.weight"},
            {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@layers.{}.mlp.down_proj.weight"},
            {Slot::ffn_gate_bias, "blk.{}.ffn_gate.bias", false, "@layers.{}.mlp.gate_proj.bias"},
            {Slot::ffn_up_bias, "blk.{}.ffn_up.bias", false, "@layers.{}.mlp.up_proj.bias"},
            {Slot::ffn_down_bias, "blk.{}.ffn_down.bias", false, "@layers.{}.mlp.down_proj.bias"},
        },
    .model_slots =
        {
            {Slot::token_embd, "token_embd.weight", true, "@embed_tokens.weight"},
            {Slot::output_norm, "output_norm.weight", true, "@norm.weight"},
            {Slot::output, "output.weight", true, "lm_head.weight", hf_plain, "token_embd.weight"},
            {Slot::rope_freqs, "rope_freqs.weight", false, nullptr},
        },
    .read_config = read_config,
    .hf_model_types = {"llama", "mistral"},
    .hf_prefix = "model.",
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        if (model.config.rope.dynamic_factor > 0) fail_stock(model, "dynamic rope scaling");
        if (model.config.windows.empty()) return {model, {}};
        return {
            model,
            fmt::format("llama.cpp ignores the sliding window of this family: its logits are equal up to {} "
                        "tokens",
                        model.config.windows.front())};
    },
};

}  // namespace refold
