#include "model/families/common/llama.h"

namespace refold {

std::vector<SlotDescription> llama_layer_slots(unsigned of_heads) {
    return {
        {Slot::attn_norm, "blk.{}.attn_norm.weight", true, "@layers.{}.input_layernorm.weight"},
        {Slot::attn_q, "blk.{}.attn_q.weight", true, "@layers.{}.self_attn.q_proj.weight", of_heads},
        {Slot::attn_k, "blk.{}.attn_k.weight", true, "@layers.{}.self_attn.k_proj.weight", of_heads},
        {Slot::attn_v, "blk.{}.attn_v.weight", true, "@layers.{}.self_attn.v_proj.weight"},
        {Slot::attn_o, "blk.{}.attn_output.weight", true, "@layers.{}.self_attn.o_proj.weight"},
        {Slot::attn_q_bias, "blk.{}.attn_q.bias", false, "@layers.{}.self_attn.q_proj.bias", of_heads},
        {Slot::attn_k_bias, "blk.{}.attn_k.bias", false, "@layers.{}.self_attn.k_proj.bias", of_heads},
        {Slot::attn_v_bias, "blk.{}.attn_v.bias", false, "@layers.{}.self_attn.v_proj.bias"},
        {Slot::attn_o_bias, "blk.{}.attn_output.bias", false, "@layers.{}.self_attn.o_proj.bias"},
        {Slot::ffn_norm, "blk.{}.ffn_norm.weight", true, "@layers.{}.post_attention_layernorm.weight"},
        {Slot::ffn_gate, "blk.{}.ffn_gate.weight", true, "@layers.{}.mlp.gate_proj.weight"},
        {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@layers.{}.mlp.up_proj.weight"},
        {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@layers.{}.mlp.down_proj.weight"},
        {Slot::ffn_gate_bias, "blk.{}.ffn_gate.bias", false, "@layers.{}.mlp.gate_proj.bias"},
        {Slot::ffn_up_bias, "blk.{}.ffn_up.bias", false, "@layers.{}.mlp.up_proj.bias"},
        {Slot::ffn_down_bias, "blk.{}.ffn_down.bias", false, "@layers.{}.mlp.down_proj.bias"},
    };
}

std::vector<SlotDescription> llama_model_slots() {
    return {
        {Slot::token_embd, "token_embd.weight", true, "@embed_tokens.weight"},
        {Slot::output_norm, "output_norm.weight", true, "@norm.weight"},
        {Slot::output, "output.weight", true, "lm_head.weight", hf_plain, "token_embd.weight"},
        {Slot::rope_freqs, "rope_freqs.weight", false, nullptr},
    };
}

std::vector<SlotDescription> without_biases(std::vector<SlotDescription> slots) {
    std::erase_if(slots, [](const SlotDescription& d) { return properties(d.slot).kind == SlotKind::bias; });
    return slots;
}

std::vector<SlotDescription> without_ffn_biases(std::vector<SlotDescription> slots) {
    std::erase_if(slots, [](const SlotDescription& d) {
        return properties(d.slot).kind == SlotKind::bias && belongs_to_ffn(d.slot);
    });
    return slots;
}

std::vector<SlotDescription> norms_of_all_heads() {
    return {{Slot::attn_q_norm_all, "blk.{}.attn_q_norm.weight", true, "@layers.{}.self_attn.q_norm.weight"},
            {Slot::attn_k_norm_all, "blk.{}.attn_k_norm.weight", true, "@layers.{}.self_attn.k_norm.weight"}};
}

std::vector<SlotDescription> post_norms(const char* attention, const char* ffn) {
    return {{Slot::attn_post_norm, "blk.{}.post_attention_norm.weight", true, attention},
            {Slot::ffn_post_norm, "blk.{}.post_ffw_norm.weight", true, ffn}};
}

void biases_to_hf(const Model& model, nlohmann::json& out) {
    out["attention_bias"] = model.topology.has(0, Slot::attn_q_bias);
    out["mlp_bias"] = model.topology.has(0, Slot::ffn_up_bias);
}

}  // namespace refold
