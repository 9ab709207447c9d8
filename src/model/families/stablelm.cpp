// StableLM 2: LayerNorm with biases, biases of Q, K and V, rotation by halves of a part of each head, gated
// FFN; attention and FFN one after the other, or in parallel from one norm (12B, which also normalizes each
// head's queries and keys with gains of its own).
#include "core/error.h"
#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::stablelm_family {
namespace {

constexpr const char* kName = "stablelm";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::layer, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::halves);
    c.norm_by_head = true;
    c.parallel_residual = keys.boolean("use_parallel_residual", false);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, kLayerNormFields, NormKind::layer, Activation::silu, out);
    write_rope(config, out);
    write_rotated_part(config, out);
    out.boolean("use_parallel_residual", config.boolean("use_parallel_residual", false));
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, kLayerNormFields, "StableLmForCausalLM", kName);
    hf_rope(model, out);
    out["partial_rotary_factor"] = rotated_part(model.config);
    out["use_parallel_residual"] = model.config.parallel_residual;
    out["qk_layernorm"] = model.topology.has(0, Slot::attn_q_norm_all);
    out["use_qkv_bias"] = model.topology.has(0, Slot::attn_q_bias);
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
            {Slot::attn_q, "blk.{}.attn_q.weight", true, "@layers.{}.self_attn.q_proj.weight"},
            {Slot::attn_k, "blk.{}.attn_k.weight", true, "@layers.{}.self_attn.k_proj.weight"},
            {Slot::attn_v, "blk.{}.attn_v.weight", true, "@layers.{}.self_attn.v_proj.weight"},
            {Slot::attn_o, "blk.{}.attn_output.weight", true, "@layers.{}.self_attn.o_proj.weight"},
            {Slot::attn_q_bias, "blk.{}.attn_q.bias", false, "@layers.{}.self_attn.q_proj.bias"},
            {Slot::attn_k_bias, "blk.{}.attn_k.bias", false, "@layers.{}.self_attn.k_proj.bias"},
            {Slot::attn_v_bias, "blk.{}.attn_v.bias", false, "@layers.{}.self_attn.v_proj.bias"},
            {Slot::attn_q_norm_all, "blk.{}.attn_q_norm.weight", false,
             "@layers.{}.self_attn.q_layernorm.norms.[].weight"},
            {Slot::attn_k_norm_all, "blk.{}.attn_k_norm.weight", false,
             "@layers.{}.self_attn.k_layernorm.norms.[].weight"},
            // Not there where attention and FFN are parallel.
            {Slot::ffn_norm, "blk.{}.ffn_norm.weight", false, "@layers.{}.post_attention_layernorm.weight"},
            {Slot::ffn_norm_bias, "blk.{}.ffn_norm.bias", false, "@layers.{}.post_attention_layernorm.bias"},
            {Slot::ffn_gate, "blk.{}.ffn_gate.weight", true, "@layers.{}.mlp.gate_proj.weight"},
            {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@layers.{}.mlp.up_proj.weight"},
            {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@layers.{}.mlp.down_proj.weight"},
        },
    .model_slots =
        {
            {Slot::token_embd, "token_embd.weight", true, "@embed_tokens.weight"},
            {Slot::output_norm, "output_norm.weight", true, "@norm.weight"},
            {Slot::output_norm_bias, "output_norm.bias", true, "@norm.bias"},
            {Slot::output, "output.weight", true, "lm_head.weight", hf_plain, "token_embd.weight"},
            {Slot::rope_freqs, "rope_freqs.weight", false, nullptr},
        },
    .read_config = read_config,
    .hf_model_types = {"stablelm"},
    .hf_prefix = "model.",
    .hf_bias = "use_qkv_bias",
    .hf_norms = "qk_layernorm",
    .hf_unread = {{"rotary_scaling_factor", "1.0"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        refuse_rotation_in_stock(model, false);
        refuse_head_width_in_stock(model);
        return {with_gains_as_rows(with_own_output(model)), {}};
    },
};

}  // namespace refold::stablelm_family
