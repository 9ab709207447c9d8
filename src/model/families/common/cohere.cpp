#include "model/families/common/cohere.h"

#include "model/families/common/stock.h"

namespace refold {

ModelConfig read_cohere_config(const FamilyKeys& keys) {
    ModelConfig c = read_common(keys, NormKind::layer, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::interleaved);
    c.parallel_residual = true;
    c.logit_scale = keys.positive("logit_scale", 1.0);
    return c;
}

void cohere_from_hf(const HfConfig& config, FamilyWriter& out) {
    write_common(config, kLayerNormFields, NormKind::layer, Activation::silu, out);
    write_rope(config, out);
    out.real("logit_scale", config.real("logit_scale"));
}

nlohmann::json cohere_to_hf(const Model& model, const char* architecture, const char* model_type) {
    nlohmann::json out = hf_common(model, kLayerNormFields, architecture, model_type);
    hf_rope(model, out);
    out["logit_scale"] = model.config.logit_scale;
    out["attention_bias"] = model.topology.has(0, Slot::attn_q_bias);
    return out;
}

void check_cohere_stock(const Model& model) {
    refuse_rotation_in_stock(model, false);
    refuse_head_width_in_stock(model);
    refuse_in_stock(model, {Slot::attn_o_bias});
    const auto& globals = model.topology.globals;
    if (globals.at(Slot::output) != globals.at(Slot::token_embd))
        fail_stock(model, "an output that is not the embedding");
}

std::vector<SlotDescription> cohere_layer_slots() {
    return {
        {Slot::attn_norm, "blk.{}.attn_norm.weight", true, "@layers.{}.input_layernorm.weight"},
        {Slot::attn_q, "blk.{}.attn_q.weight", true, "@layers.{}.self_attn.q_proj.weight"},
        {Slot::attn_k, "blk.{}.attn_k.weight", true, "@layers.{}.self_attn.k_proj.weight"},
        {Slot::attn_v, "blk.{}.attn_v.weight", true, "@layers.{}.self_attn.v_proj.weight"},
        {Slot::attn_o, "blk.{}.attn_output.weight", true, "@layers.{}.self_attn.o_proj.weight"},
        {Slot::attn_q_bias, "blk.{}.attn_q.bias", false, "@layers.{}.self_attn.q_proj.bias"},
        {Slot::attn_k_bias, "blk.{}.attn_k.bias", false, "@layers.{}.self_attn.k_proj.bias"},
        {Slot::attn_v_bias, "blk.{}.attn_v.bias", false, "@layers.{}.self_attn.v_proj.bias"},
        {Slot::attn_o_bias, "blk.{}.attn_output.bias", false, "@layers.{}.self_attn.o_proj.bias"},
        {Slot::ffn_gate, "blk.{}.ffn_gate.weight", true, "@layers.{}.mlp.gate_proj.weight"},
        {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@layers.{}.mlp.up_proj.weight"},
        {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@layers.{}.mlp.down_proj.weight"},
    };
}

}  // namespace refold
