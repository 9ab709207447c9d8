#include "model/families/common/gemma.h"

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "model/families/common/stock.h"
#include "model/materialize.h"
#include "model/stock.h"

namespace refold {

// llama.cpp recognizes the 27B models, whose queries are scaled by n_embd / n_head, by their number of
// layers.
static double usual_scale(const ModelConfig& c, int64_t layers) {
    const bool is_27b = (c.family == "gemma2" && layers == 46) || (c.family == "gemma3" && layers == 62);
    return 1.0 / std::sqrt(static_cast<double>(is_27b ? c.n_embd / c.n_head : c.head_dim));
}

ModelConfig read_gemma_config(const FamilyKeys& keys) {
    ModelConfig c = read_common(keys, NormKind::rms, Activation::gelu_tanh);
    c.embedding_scale = std::sqrt(static_cast<float>(c.n_embd));
    c.rope = read_rope(keys, c, RopeKind::halves);
    if (!keys.has("attention.scale"))
        c.attention_scale = static_cast<float>(usual_scale(c, keys.size("block_count")));
    return c;
}

void write_gemma_keys(const HfConfig& config, const HfFields& fields, FamilyWriter& out) {
    write_common(config, fields, NormKind::rms, Activation::gelu_tanh, out);
    write_rope(config, out);
}

void write_soft_cap(const HfConfig& config, const char* field, FamilyWriter& out) {
    const bool given = config.has(field);
    const double cap = given ? config.real(field) : 0;
    if (given && !(cap > 0))
        fail(ErrorCode::input, "config.json", "field '{}' must be positive or null, got {}", field, cap);
    out.real(field, cap);
}

void write_gemma_scale(const HfConfig& config, const char* family, GgufMetadata& metadata,
                       FamilyWriter& out) {
    const double scale = 1.0 / std::sqrt(config.real("query_pre_attn_scalar"));
    if (!std::isfinite(scale))
        fail(ErrorCode::input, "config.json", "field 'query_pre_attn_scalar' must be positive");
    const FamilyKeys keys(metadata, family);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::gelu_tanh);
    if (std::abs(usual_scale(c, keys.size("block_count")) / scale - 1) > 1e-6)
        out.real("attention.scale", scale);
}

nlohmann::json gemma_to_hf(const Model& model, const char* architecture, const char* model_type) {
    nlohmann::json out = hf_common(model, kGemmaFields, architecture, model_type);
    if (model.config.activation == Activation::gelu_tanh) out["hidden_activation"] = "gelu_pytorch_tanh";
    out["hidden_act"] = out["hidden_activation"];
    out["head_dim"] = model.config.head_dim;
    hf_rope(model, out);
    return out;
}

void gemma_windows_to_hf(const Model& model, nlohmann::json& out) {
    const ModelConfig& c = model.config;
    out["query_pre_attn_scalar"] =
        std::round(1.0 / (static_cast<double>(c.attention_scale) * c.attention_scale) * 1e3) / 1e3;
    windows_to_hf(model, out);
}

StockModel gemma_to_stock(const Model& model) {
    const size_t layers = model.topology.layers.size();
    const double usual = usual_scale(model.config, static_cast<int64_t>(layers));
    const double factor = model.config.attention_scale / usual;
    refuse_rotation_in_stock(model, false);
    refuse_in_stock(model, {Slot::attn_o_bias});  // of Q, K and V it reads them
    Model out = model;
    if (std::abs(factor - 1) < 1e-6) return {out, {}};
    const auto shared = std::make_shared<const Model>(model);
    for (size_t l = 0; l < layers; ++l) {
        const Slot slot = model.topology.has(l, Slot::attn_q_norm) ? Slot::attn_q_norm : Slot::attn_q;
        const std::string name = tensor_name(*model.family, slot, l);
        Tensor& tensor = out.tensors.at(name);
        tensor = {DType::F32, tensor.shape, {}, [shared, l, slot, factor] {
                      auto values = materialize(*shared, shared->topology.at(l, slot), slot);
                      for (float& value : values) value = static_cast<float>(value * factor);
                      std::vector<std::byte> bytes(values.size() * sizeof(float));
                      memcpy(bytes.data(), values.data(), bytes.size());
                      return bytes;
                  }};
    }
    out.metadata.erase(std::string(model.family->name) + ".attention.scale");
    out.config.attention_scale = static_cast<float>(usual);
    return {out, {}};
}

std::vector<SlotDescription> gemma_layer_slots(bool post_norms, bool head_norms) {
    std::vector<SlotDescription> slots = {
        {Slot::attn_norm, "blk.{}.attn_norm.weight", true, "@layers.{}.input_layernorm.weight", hf_plus_one},
        {Slot::attn_q, "blk.{}.attn_q.weight", true, "@layers.{}.self_attn.q_proj.weight"},
        {Slot::attn_k, "blk.{}.attn_k.weight", true, "@layers.{}.self_attn.k_proj.weight"},
        {Slot::attn_v, "blk.{}.attn_v.weight", true, "@layers.{}.self_attn.v_proj.weight"},
        {Slot::attn_o, "blk.{}.attn_output.weight", true, "@layers.{}.self_attn.o_proj.weight"},
        {Slot::attn_q_bias, "blk.{}.attn_q.bias", false, "@layers.{}.self_attn.q_proj.bias"},
        {Slot::attn_k_bias, "blk.{}.attn_k.bias", false, "@layers.{}.self_attn.k_proj.bias"},
        {Slot::attn_v_bias, "blk.{}.attn_v.bias", false, "@layers.{}.self_attn.v_proj.bias"},
        {Slot::attn_o_bias, "blk.{}.attn_output.bias", false, "@layers.{}.self_attn.o_proj.bias"},
        {Slot::ffn_norm, "blk.{}.ffn_norm.weight", true,
         post_norms ? "@layers.{}.pre_feedforward_layernorm.weight"
                    : "@layers.{}.post_attention_layernorm.weight",
         hf_plus_one},
        {Slot::ffn_gate, "blk.{}.ffn_gate.weight", true, "@layers.{}.mlp.gate_proj.weight"},
        {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@layers.{}.mlp.up_proj.weight"},
        {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@layers.{}.mlp.down_proj.weight"},
    };
    if (post_norms) {
        slots.push_back({Slot::attn_post_norm, "blk.{}.post_attention_norm.weight", true,
                         "@layers.{}.post_attention_layernorm.weight", hf_plus_one});
        slots.push_back({Slot::ffn_post_norm, "blk.{}.post_ffw_norm.weight", true,
                         "@layers.{}.post_feedforward_layernorm.weight", hf_plus_one});
    }
    if (head_norms) {
        slots.push_back({Slot::attn_q_norm, "blk.{}.attn_q_norm.weight", true,
                         "@layers.{}.self_attn.q_norm.weight", hf_plus_one});
        slots.push_back({Slot::attn_k_norm, "blk.{}.attn_k_norm.weight", true,
                         "@layers.{}.self_attn.k_norm.weight", hf_plus_one});
    }
    return slots;
}

std::vector<SlotDescription> gemma_model_slots() {
    return {
        {Slot::token_embd, "token_embd.weight", true, "@embed_tokens.weight"},
        {Slot::output_norm, "output_norm.weight", true, "@norm.weight", hf_plus_one},
        {Slot::output, "output.weight", true, "lm_head.weight", hf_plain, "token_embd.weight"},
    };
}

}  // namespace refold
