// Gemma 1, 2 and 3 (text): scaled embeddings, RMSNorm by 1 + weight, GeGLU, heads wider than n_embd / n_head.
// Gemma 2 adds soft caps, norms after the modules and windows on every other layer; Gemma 3 drops the caps,
// normalises queries and keys, and rotates windowed layers by a base of their own.
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "model/families/common.h"
#include "model/families/families.h"

namespace refold {
namespace {

// llama.cpp recognises the 27B models, whose queries are scaled by n_embd / n_head, by their depth.
double usual_scale(const ModelConfig& c, int64_t layers) {
    const bool is_27b = (c.family == "gemma2" && layers == 46) || (c.family == "gemma3" && layers == 62);
    return 1.0 / std::sqrt(static_cast<double>(is_27b ? c.n_embd / c.n_head : c.head_dim));
}

ModelConfig read_gemma(const FamilyKeys& keys) {
    ModelConfig c = read_common(keys, NormKind::rms, Activation::gelu_tanh);
    c.embedding_scale = std::sqrt(static_cast<float>(c.n_embd));
    c.rope = read_rope(keys, c, RopeKind::halves);
    if (!keys.has("attention.scale"))
        c.attention_scale = static_cast<float>(usual_scale(c, keys.size("block_count")));
    return c;
}

ModelConfig read_gemma1(const GgufMetadata& metadata) { return read_gemma(FamilyKeys(metadata, "gemma")); }

ModelConfig read_gemma2(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, "gemma2");
    ModelConfig c = read_gemma(keys);
    c.attention_softcap = keys.at_least_zero("attn_logit_softcapping", 50.0);
    c.logit_softcap = keys.at_least_zero("final_logit_softcapping", 30.0);
    c.windows = read_windows(keys, 2);
    return c;
}

ModelConfig read_gemma3(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, "gemma3");
    ModelConfig c = read_gemma(keys);
    c.logit_softcap = keys.at_least_zero("final_logit_softcapping", 0.0);
    c.windows = read_windows(keys, 6);
    c.local_rope = Rope{.kind = c.rope.kind,
                        .dims = c.rope.dims,
                        .base = keys.positive("rope.freq_base_swa", 10000.0),
                        .original_context = c.rope.original_context};
    return c;
}

// Fields and keys that all three have. Old files say hidden_act "gelu" and mean the tanh form.
void write_gemma(const HfConfig& config, FamilyWriter& out) {
    HfFields fields;
    fields.activation = "hidden_activation";
    write_common(config, fields, NormKind::rms, Activation::gelu_tanh, 1e-6, out);
    if (!config.has("head_dim")) {
        out.integer("attention.key_length", 256);
        out.integer("attention.value_length", 256);
    }
    write_rope(config, 10000.0, out);
}

void write_scale(const HfConfig& config, const char* family, GgufMetadata& metadata, FamilyWriter& out) {
    const double scale = 1.0 / std::sqrt(config.real("query_pre_attn_scalar", 256));
    if (!std::isfinite(scale))
        fail(ErrorCode::input, "config.json", "field 'query_pre_attn_scalar' must be positive");
    const FamilyKeys keys(metadata, family);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::gelu_tanh);
    if (std::abs(usual_scale(c, keys.size("block_count")) / scale - 1) > 1e-6)
        out.real("attention.scale", scale);
}

void gemma1_from_hf(const nlohmann::json& json, GgufMetadata& metadata) {
    FamilyWriter out(metadata, "gemma");
    write_gemma(HfConfig(json), out);
}

void gemma2_from_hf(const nlohmann::json& json, GgufMetadata& metadata) {
    const HfConfig config(json);
    FamilyWriter out(metadata, "gemma2");
    write_gemma(config, out);
    write_scale(config, "gemma2", metadata, out);
    out.real("attn_logit_softcapping",
             json.contains("attn_logit_softcapping") ? config.real("attn_logit_softcapping", 0) : 50.0);
    out.real("final_logit_softcapping",
             json.contains("final_logit_softcapping") ? config.real("final_logit_softcapping", 0) : 30.0);
    write_windows(config.integer("sliding_window", 4096),
                  layers_with_window(config, [](size_t l) { return l % 2 == 0; }), out);
}

void gemma3_from_hf(const nlohmann::json& json, GgufMetadata& metadata) {
    const HfConfig config(json);
    if (config.has("attn_logit_softcapping"))
        fail(ErrorCode::unsupported, "config.json",
             "field 'attn_logit_softcapping' is not supported for Gemma 3");
    FamilyWriter out(metadata, "gemma3");
    write_gemma(config, out);
    if (!config.has("rope_theta")) out.real("rope.freq_base", 1e6);
    write_scale(config, "gemma3", metadata, out);
    if (config.has("final_logit_softcapping"))
        out.real("final_logit_softcapping", config.real("final_logit_softcapping"));
    const auto period = static_cast<size_t>(config.integer("sliding_window_pattern", 6));
    if (period == 0) fail(ErrorCode::input, "config.json", "field 'sliding_window_pattern' must not be 0");
    write_windows(config.integer("sliding_window", 4096),
                  layers_with_window(config, [&](size_t l) { return l % period != period - 1; }), out);
    out.real("rope.freq_base_swa", config.real("rope_local_base_freq", 10000.0));
}

nlohmann::json hf_gemma(const Model& model, const char* architecture, const char* model_type) {
    HfFields fields;
    fields.activation = "hidden_activation";
    nlohmann::json out = hf_common(model, fields, architecture, model_type);
    if (model.config.activation == Activation::gelu_tanh) out["hidden_activation"] = "gelu_pytorch_tanh";
    out["hidden_act"] = out["hidden_activation"];
    out["head_dim"] = model.config.head_dim;
    out["num_key_value_heads"] = model.config.n_head_kv;
    hf_rope(model, out);
    return out;
}

nlohmann::json gemma1_to_hf(const Model& model) { return hf_gemma(model, "GemmaForCausalLM", "gemma"); }

void hf_windows(const Model& model, nlohmann::json& out) {
    const ModelConfig& c = model.config;
    out["query_pre_attn_scalar"] =
        std::round(1.0 / (static_cast<double>(c.attention_scale) * c.attention_scale) * 1e3) / 1e3;
    nlohmann::json types = nlohmann::json::array();
    for (size_t p = 0; p < model.topology.positions.size(); ++p) {
        types.push_back(c.window(p) > 0 ? "sliding_attention" : "full_attention");
        if (c.window(p) > 0) out["sliding_window"] = c.window(p);
    }
    out["layer_types"] = std::move(types);
}

nlohmann::json gemma2_to_hf(const Model& model) {
    nlohmann::json out = hf_gemma(model, "Gemma2ForCausalLM", "gemma2");
    const auto cap = [](float value) { return value > 0 ? nlohmann::json(value) : nlohmann::json(); };
    out["attn_logit_softcapping"] = cap(model.config.attention_softcap);
    out["final_logit_softcapping"] = cap(model.config.logit_softcap);
    hf_windows(model, out);
    return out;
}

nlohmann::json gemma3_to_hf(const Model& model) {
    nlohmann::json out = hf_gemma(model, "Gemma3ForCausalLM", "gemma3_text");
    if (model.config.logit_softcap > 0) out["final_logit_softcapping"] = model.config.logit_softcap;
    out["rope_local_base_freq"] = model.config.local_rope->base;
    hf_windows(model, out);
    // Read by transformers before layer_types existed.
    const auto& windows = model.config.windows;
    if (const auto full = std::find(windows.begin(), windows.end(), 0); full != windows.end())
        out["sliding_window_pattern"] = full - windows.begin() + 1;
    return out;
}

// llama.cpp knows no other scale than the usual one: what differs is moved into the queries.
StockModel scale_into_queries(const Model& model) {
    const size_t layers = model.topology.positions.size();
    const double usual = usual_scale(model.config, static_cast<int64_t>(layers));
    const double factor = model.config.attention_scale / usual;
    if (model.config.rope.dynamic_factor > 0) fail_stock(model, "dynamic rope scaling");
    Model out = model;
    if (std::abs(factor - 1) < 1e-6) return {out, {}};
    const auto shared = std::make_shared<const Model>(model);
    for (size_t p = 0; p < layers; ++p) {
        const Slot slot = model.topology.has(p, Slot::attn_q_norm) ? Slot::attn_q_norm : Slot::attn_q;
        const std::string name = tensor_name(*model.family, slot, p);
        Tensor& tensor = out.tensors.at(name);
        tensor = {DType::F32, tensor.shape, {}, [shared, p, slot, factor] {
                      auto values = materialise(*shared, shared->topology.at(p, slot), slot);
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

std::vector<SlotDescription> position_slots(bool post_norms, bool head_norms) {
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

std::vector<SlotDescription> model_slots() {
    return {
        {Slot::token_embd, "token_embd.weight", true, "@embed_tokens.weight"},
        {Slot::output_norm, "output_norm.weight", true, "@norm.weight", hf_plus_one},
        {Slot::output, "output.weight", true, "lm_head.weight", hf_plain, "token_embd.weight"},
    };
}

}  // namespace

const Family kGemmaFamily = {.name = "gemma",
                             .position_slots = position_slots(false, false),
                             .model_slots = model_slots(),
                             .read_config = read_gemma1,
                             .hf_model_types = {"gemma"},
                             .hf_prefix = "model.",
                             .hf_tied = true,
                             .read_hf_config = gemma1_from_hf,
                             .write_hf_config = gemma1_to_hf,
                             .to_stock = scale_into_queries};

const Family kGemma2Family = {.name = "gemma2",
                              .position_slots = position_slots(true, false),
                              .model_slots = model_slots(),
                              .read_config = read_gemma2,
                              .hf_model_types = {"gemma2"},
                              .hf_prefix = "model.",
                              .hf_tied = true,
                              .read_hf_config = gemma2_from_hf,
                              .write_hf_config = gemma2_to_hf,
                              .to_stock = scale_into_queries};

const Family kGemma3Family = {.name = "gemma3",
                              .position_slots = position_slots(true, true),
                              .model_slots = model_slots(),
                              .read_config = read_gemma3,
                              .hf_model_types = {"gemma3_text"},
                              .hf_prefix = "model.",
                              .hf_tied = true,
                              .read_hf_config = gemma3_from_hf,
                              .write_hf_config = gemma3_to_hf,
                              .to_stock = scale_into_queries};

}  // namespace refold
