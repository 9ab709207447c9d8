#include "model/families/common/baichuan.h"

#include "core/error.h"
#include "model/families/common/stock.h"

namespace refold {

static constexpr HfFields kFields = {.heads_kv = nullptr};
static constexpr int64_t kFirstVocabulary = 64000;
static constexpr int64_t kLayers7b = 32, kLayers13b = 40;

ModelConfig read_baichuan_config(const FamilyKeys& keys) {
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    // llama.cpp's files do not say it: it goes by the number of layers.
    const bool alibi = c.family == kBaichuan && keys.size("block_count") == kLayers13b;
    c.max_alibi_bias = keys.at_least_zero("attention.max_alibi_bias", alibi ? 8.0 : 0.0);
    if (c.max_alibi_bias == 0) c.rope = read_rope(keys, c, RopeKind::interleaved);
    return c;
}

// Version 1 spells its 7B architecture "BaiChuan" and has a vocabulary of 64000.
static bool is_second(const HfConfig& config) {
    const nlohmann::json* architectures = config.find("architectures");
    const bool first = architectures != nullptr && architectures->is_array() && !architectures->empty() &&
                       (*architectures)[0] == "BaiChuanForCausalLM";
    return !first && config.integer("vocab_size") != kFirstVocabulary;
}

void baichuan_from_hf(const HfConfig& config, GgufMetadata& metadata) {
    if (config.boolean("tie_word_embeddings", false))
        fail(ErrorCode::unsupported, "config.json",
             "field 'tie_word_embeddings' (true) is not supported for Baichuan");
    const char* family = is_second(config) ? kBaichuan2 : kBaichuan;
    metadata.set("general.architecture", GgufValue::string(family));
    FamilyWriter out(metadata, family);
    HfFields fields = kFields;
    const bool alibi = !config.has(fields.context);
    if (alibi) fields.context = "model_max_length";
    write_common(config, fields, NormKind::rms, Activation::silu, out);
    if (alibi) {
        out.real("attention.max_alibi_bias", 8.0);
    } else {
        out.real("rope.freq_base", 10000.0);
    }
}

nlohmann::json baichuan_to_hf(const Model& model) {
    const bool alibi = model.config.max_alibi_bias > 0;
    HfFields fields = kFields;
    if (alibi) fields.context = "model_max_length";
    const bool old_7b = !model.config.norm_head && !alibi;
    nlohmann::json out =
        hf_common(model, fields, old_7b ? "BaiChuanForCausalLM" : "BaichuanForCausalLM", "baichuan");
    out["model_max_length"] = model.config.context_length;
    out["auto_map"] = {{"AutoConfig", "configuration_baichuan.BaichuanConfig"},
                       {"AutoModelForCausalLM", "modeling_baichuan.BaichuanForCausalLM"}};
    return out;
}

void check_baichuan_stock(const Model& model) {
    const auto layers = static_cast<int64_t>(model.topology.layers.size());
    if (layers != (model.config.max_alibi_bias > 0 ? kLayers13b : kLayers7b))
        fail_stock(model, fmt::format("{} layers (it takes {} for rotation and {} for ALiBi)", layers,
                                      kLayers7b, kLayers13b));
}

std::vector<SlotDescription> baichuan_layer_slots() {
    return {
        {Slot::attn_norm, "blk.{}.attn_norm.weight", true, "@layers.{}.input_layernorm.weight"},
        {Slot::attn_q, "blk.{}.attn_q.weight", true, "@layers.{}.self_attn.W_pack.weight",
         hf_stacked | hf_rotary},
        {Slot::attn_k, "blk.{}.attn_k.weight", true, "@layers.{}.self_attn.W_pack.weight",
         hf_stacked | hf_rotary},
        {Slot::attn_v, "blk.{}.attn_v.weight", true, "@layers.{}.self_attn.W_pack.weight", hf_stacked},
        {Slot::attn_o, "blk.{}.attn_output.weight", true, "@layers.{}.self_attn.o_proj.weight"},
        {Slot::ffn_norm, "blk.{}.ffn_norm.weight", true, "@layers.{}.post_attention_layernorm.weight"},
        {Slot::ffn_gate, "blk.{}.ffn_gate.weight", true, "@layers.{}.mlp.gate_proj.weight"},
        {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@layers.{}.mlp.up_proj.weight"},
        {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@layers.{}.mlp.down_proj.weight"},
    };
}

std::vector<SlotDescription> baichuan_model_slots() {
    return {
        {Slot::token_embd, "token_embd.weight", true, "@embed_tokens.weight"},
        {Slot::output_norm, "output_norm.weight", true, "@norm.weight"},
        {Slot::output, "output.weight", true, "lm_head.weight"},
    };
}

}  // namespace refold
