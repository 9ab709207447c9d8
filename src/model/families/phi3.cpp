// Phi-3, Phi-3.5, Phi-4: Llama with rotation by halves, of all or a part of each head, Q, K and V and gate
// and up as one tensor each; windows on all layers; LongRoPE.
#include <algorithm>

#include "core/error.h"
#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::phi3_family {
namespace {

constexpr const char* kName = "phi3";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::halves);
    // Converters write 0 where there is none.
    if (metadata.integer(keys.name("attention.sliding_window"), 0) > 0) c.windows = read_windows(keys, 0);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    write_rope(config, out);
    write_rotated_part(config, out);
    const nlohmann::json* scaling = config.find("rope_scaling");
    const std::string type =
        scaling == nullptr ? "default" : HfConfig(*scaling).string("rope_type", "default");
    if (type != "default" && type != "longrope")
        fail(ErrorCode::unsupported, "config.json",
             "rope_scaling type '{}' is not supported for Phi-3; known: default, longrope", type);
    if (config.has("sliding_window"))
        write_windows(config.integer("sliding_window"),
                      std::vector<bool>(static_cast<size_t>(config.integer("num_hidden_layers")), true), out);
}

nlohmann::json write_hf_config(const Model& model) {
    const ModelConfig& c = model.config;
    nlohmann::json out = hf_common(model, {}, "Phi3ForCausalLM", kName);
    hf_rope(model, out);
    out["partial_rotary_factor"] = rotated_part(c);
    if (std::find(c.windows.begin(), c.windows.end(), 0) != c.windows.end())
        fail(ErrorCode::unsupported, "export", "a configuration of 'phi3' has the window on every layer");
    out["sliding_window"] = c.windows.empty() ? nlohmann::json() : nlohmann::json(c.windows.front());
    out["pad_token_id"] =
        out.value("pad_token_id", 0);  // Phi3Config's usual one may be outside the vocabulary
    return out;
}

StockModel to_stock(const Model& model) {
    refuse_rotation_in_stock(model, true);
    refuse_head_width_in_stock(model);
    if (model.config.windows.empty()) return {model, {}};
    return {model,
            fmt::format("llama.cpp ignores the sliding window of this family: its logits are equal up to {} "
                        "tokens",
                        model.config.windows.front())};
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots =
        {
            {Slot::attn_norm, "blk.{}.attn_norm.weight", true, "@layers.{}.input_layernorm.weight"},
            {Slot::attn_q, "blk.{}.attn_q.weight", true, "@layers.{}.self_attn.qkv_proj.weight", hf_stacked},
            {Slot::attn_k, "blk.{}.attn_k.weight", true, "@layers.{}.self_attn.qkv_proj.weight", hf_stacked},
            {Slot::attn_v, "blk.{}.attn_v.weight", true, "@layers.{}.self_attn.qkv_proj.weight", hf_stacked},
            {Slot::attn_o, "blk.{}.attn_output.weight", true, "@layers.{}.self_attn.o_proj.weight"},
            {Slot::ffn_norm, "blk.{}.ffn_norm.weight", true, "@layers.{}.post_attention_layernorm.weight"},
            {Slot::ffn_gate, "blk.{}.ffn_gate.weight", true, "@layers.{}.mlp.gate_up_proj.weight",
             hf_stacked},
            {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@layers.{}.mlp.gate_up_proj.weight", hf_stacked},
            {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@layers.{}.mlp.down_proj.weight"},
        },
    .model_slots =
        {
            {Slot::token_embd, "token_embd.weight", true, "@embed_tokens.weight"},
            {Slot::output_norm, "output_norm.weight", true, "@norm.weight"},
            {Slot::output, "output.weight", true, "lm_head.weight", hf_plain, "token_embd.weight"},
            {Slot::rope_freqs, "rope_factors_short.weight", false, nullptr},
            {Slot::rope_freqs_long, "rope_factors_long.weight", false, nullptr},
        },
    .read_config = read_config,
    .hf_model_types = {"phi3"},
    .hf_prefix = "model.",
    .hf_unread = {{"layer_types"},  // transformers' Phi-3 has the window on every layer
                  {"original_max_position_embeddings"},
                  {"full_attn_mod", "1"},
                  {"interpolate_factor", "1"},
                  {"lm_head_bias", "false"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .fused = {kFusedQkv, {Slot::ffn_gate, "blk.{}.ffn_up.weight"}},
    .to_stock = to_stock,
};

}  // namespace refold::phi3_family
