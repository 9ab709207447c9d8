// GPT-NeoX and Pythia: LayerNorm, biases everywhere, partial rotation by halves, attention and FFN in
// parallel (or one after the other); the checkpoint interleaves Q, K and V per head.
#include "core/error.h"
#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"

namespace refold::gpt_neox_family {
namespace {

constexpr const char* kName = "gptneox";
constexpr HfFields kFields = {.heads_kv = nullptr, .epsilon = "layer_norm_eps"};

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::layer, Activation::gelu);
    c.rope = read_rope(keys, c, RopeKind::halves);
    c.parallel_residual = keys.boolean("use_parallel_residual", true);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, kFields, NormKind::layer, Activation::gelu, out);
    write_rope(config, out);
    write_rotated_part(config, out);
    out.boolean("use_parallel_residual", config.boolean("use_parallel_residual", true));
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, kFields, "GPTNeoXForCausalLM", "gpt_neox");
    hf_rope(model, out);
    out["rotary_emb_base"] = out["rope_theta"];
    out["rotary_pct"] = rotated_part(model.config);
    out["use_parallel_residual"] = model.config.parallel_residual;
    out["attention_bias"] = model.topology.has(0, Slot::attn_q_bias);
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots =
        {
            {Slot::attn_norm, "blk.{}.attn_norm.weight", true, "@layers.{}.input_layernorm.weight"},
            {Slot::attn_norm_bias, "blk.{}.attn_norm.bias", true, "@layers.{}.input_layernorm.bias"},
            {Slot::attn_q, "blk.{}.attn_q.weight", true, "@layers.{}.attention.query_key_value.weight",
             hf_qkv_per_head},
            {Slot::attn_k, "blk.{}.attn_k.weight", true, "@layers.{}.attention.query_key_value.weight",
             hf_qkv_per_head},
            {Slot::attn_v, "blk.{}.attn_v.weight", true, "@layers.{}.attention.query_key_value.weight",
             hf_qkv_per_head},
            {Slot::attn_o, "blk.{}.attn_output.weight", true, "@layers.{}.attention.dense.weight"},
            {Slot::attn_q_bias, "blk.{}.attn_q.bias", false, "@layers.{}.attention.query_key_value.bias",
             hf_qkv_per_head},
            {Slot::attn_k_bias, "blk.{}.attn_k.bias", false, "@layers.{}.attention.query_key_value.bias",
             hf_qkv_per_head},
            {Slot::attn_v_bias, "blk.{}.attn_v.bias", false, "@layers.{}.attention.query_key_value.bias",
             hf_qkv_per_head},
            {Slot::attn_o_bias, "blk.{}.attn_output.bias", false, "@layers.{}.attention.dense.bias"},
            {Slot::ffn_norm, "blk.{}.ffn_norm.weight", true, "@layers.{}.post_attention_layernorm.weight"},
            {Slot::ffn_norm_bias, "blk.{}.ffn_norm.bias", true, "@layers.{}.post_attention_layernorm.bias"},
            {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@layers.{}.mlp.dense_h_to_4h.weight"},
            {Slot::ffn_up_bias, "blk.{}.ffn_up.bias", true, "@layers.{}.mlp.dense_h_to_4h.bias"},
            {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@layers.{}.mlp.dense_4h_to_h.weight"},
            {Slot::ffn_down_bias, "blk.{}.ffn_down.bias", true, "@layers.{}.mlp.dense_4h_to_h.bias"},
        },
    .model_slots =
        {
            {Slot::token_embd, "token_embd.weight", true, "@embed_in.weight"},
            {Slot::output_norm, "output_norm.weight", true, "@final_layer_norm.weight"},
            {Slot::output_norm_bias, "output_norm.bias", true, "@final_layer_norm.bias"},
            {Slot::output, "output.weight", true, "embed_out.weight", hf_plain, "token_embd.weight"},
        },
    .read_config = read_config,
    .hf_model_types = {"gpt_neox"},
    .hf_prefix = "gpt_neox.",
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .fused = {kFusedQkv},
};

}  // namespace refold::gpt_neox_family
