// Baichuan 1 and 2: Llama with Q, K and V in one checkpoint tensor. The 13B models have ALiBi instead of
// rotation; version 2 divides the output's rows by their norm ("NormHead").
#include <cstring>

#include "core/error.h"
#include "model/families/common.h"
#include "model/families/families.h"

namespace refold {
namespace {

constexpr const char* kFirst = "baichuan";
constexpr const char* kSecond = "baichuan2";  // ours: llama.cpp has no NormHead
constexpr int64_t kFirstVocabulary = 64000;
constexpr int64_t kLayers7b = 32, kLayers13b = 40;

ModelConfig read_config(const GgufMetadata& metadata, const char* family) {
    const FamilyKeys keys(metadata, family);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.norm_head = family == kSecond;
    // llama.cpp's files do not say it: it goes by the depth.
    const bool alibi = family == kFirst && keys.size("block_count") == kLayers13b;
    c.max_alibi_bias = keys.at_least_zero("attention.max_alibi_bias", alibi ? 8.0 : 0.0);
    if (c.max_alibi_bias == 0) c.rope = read_rope(keys, c, RopeKind::interleaved);
    return c;
}

// The versions share their model_type: version 1 spells its 7B architecture "BaiChuan" and has a vocabulary
// of 64000.
bool is_second(const HfConfig& config) {
    const nlohmann::json* architectures = config.find("architectures");
    const bool first = architectures != nullptr && architectures->is_array() && !architectures->empty() &&
                       (*architectures)[0] == "BaiChuanForCausalLM";
    return !first && config.integer("vocab_size") != kFirstVocabulary;
}

void read_hf_config(const nlohmann::json& json, GgufMetadata& metadata) {
    const HfConfig config(json);
    const char* family = is_second(config) ? kSecond : kFirst;
    metadata.set("general.architecture", GgufValue::string(family));
    FamilyWriter out(metadata, family);
    HfFields fields;
    const bool alibi = !config.has(fields.context);
    if (alibi) fields.context = "model_max_length";
    write_common(config, fields, NormKind::rms, Activation::silu, 1e-6, out);
    if (alibi) {
        out.real("attention.max_alibi_bias", 8.0);
    } else {
        write_rope(config, 10000.0, out);
    }
}

nlohmann::json write_hf_config(const Model& model) {
    const bool alibi = model.config.max_alibi_bias > 0;
    HfFields fields;
    if (alibi) fields.context = "model_max_length";
    const bool old_7b = !model.config.norm_head && !alibi;
    nlohmann::json out =
        hf_common(model, fields, old_7b ? "BaiChuanForCausalLM" : "BaichuanForCausalLM", "baichuan");
    out["model_max_length"] = model.config.context_length;
    out["auto_map"] = {{"AutoConfig", "configuration_baichuan.BaichuanConfig"},
                       {"AutoModelForCausalLM", "modeling_baichuan.BaichuanForCausalLM"}};
    return out;
}

void check_stock(const Model& model) {
    const auto layers = static_cast<int64_t>(model.topology.positions.size());
    if (layers != (model.config.max_alibi_bias > 0 ? kLayers13b : kLayers7b))
        fail_stock(model, fmt::format("{} layers (it takes {} for rotation and {} for ALiBi)", layers,
                                      kLayers7b, kLayers13b));
}

StockModel first_to_stock(const Model& model) {
    check_stock(model);
    return {model, {}};
}

// The norms go into the output's rows, in a float type.
StockModel second_to_stock(const Model& model) {
    check_stock(model);
    Model out = model;
    out.family = &kBaichuanFamily;
    out.config.family = kFirst;
    out.config.norm_head = false;
    out.metadata = renamed_metadata(model.metadata, kSecond, kFirst);
    const std::string name = tensor_name(*model.family, Slot::output, 0);
    const Tensor source = model.tensor(std::get<Dense>(model.topology.globals.at(Slot::output)).tensor);
    const DType type = is_float(source.type) ? source.type : DType::F16;
    out.tensors[name] = {type, source.shape, {}, [type, source, files = model.source] {
                             const std::vector<float> scales = inverse_row_norms(source);
                             const int64_t width = source.row_elements();
                             const TensorBytes bytes(source);
                             const size_t from = row_bytes(source.type, width), to = row_bytes(type, width);
                             std::vector<std::byte> packed(to * scales.size());
                             std::vector<float> row(static_cast<size_t>(width));
                             for (size_t r = 0; r < scales.size(); ++r) {
                                 dequantise(source.type, bytes.bytes().subspan(r * from, from), row);
                                 for (float& x : row) x *= scales[r];
                                 const auto done = quantise(type, row, width);
                                 memcpy(packed.data() + r * to, done.data(), to);
                             }
                             return packed;
                         }};
    out.topology.globals[Slot::output] = Dense{name};
    return {out, "the output's rows are divided by their norms"};
}

std::vector<SlotDescription> position_slots() {
    return {
        {Slot::attn_norm, "blk.{}.attn_norm.weight", true, "@layers.{}.input_layernorm.weight"},
        {Slot::attn_q, "blk.{}.attn_q.weight", true, "@layers.{}.self_attn.W_pack.weight",
         hf_qkv_blocks | hf_rotary},
        {Slot::attn_k, "blk.{}.attn_k.weight", true, "@layers.{}.self_attn.W_pack.weight",
         hf_qkv_blocks | hf_rotary},
        {Slot::attn_v, "blk.{}.attn_v.weight", true, "@layers.{}.self_attn.W_pack.weight", hf_qkv_blocks},
        {Slot::attn_o, "blk.{}.attn_output.weight", true, "@layers.{}.self_attn.o_proj.weight"},
        {Slot::ffn_norm, "blk.{}.ffn_norm.weight", true, "@layers.{}.post_attention_layernorm.weight"},
        {Slot::ffn_gate, "blk.{}.ffn_gate.weight", true, "@layers.{}.mlp.gate_proj.weight"},
        {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@layers.{}.mlp.up_proj.weight"},
        {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@layers.{}.mlp.down_proj.weight"},
    };
}

std::vector<SlotDescription> model_slots() {
    return {
        {Slot::token_embd, "token_embd.weight", true, "@embed_tokens.weight"},
        {Slot::output_norm, "output_norm.weight", true, "@norm.weight"},
        {Slot::output, "output.weight", true, "lm_head.weight"},
    };
}

}  // namespace

const Family kBaichuanFamily = {
    .name = kFirst,
    .position_slots = position_slots(),
    .model_slots = model_slots(),
    .read_config = [](const GgufMetadata& metadata) { return read_config(metadata, kFirst); },
    .hf_model_types = {"baichuan"},
    .hf_prefix = "model.",
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = first_to_stock,
};

const Family kBaichuan2Family = {
    .name = kSecond,
    .position_slots = position_slots(),
    .model_slots = model_slots(),
    .read_config = [](const GgufMetadata& metadata) { return read_config(metadata, kSecond); },
    .hf_model_types = {},  // found through Baichuan, whose reader tells the versions apart
    .hf_prefix = "model.",
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = second_to_stock,
};

}  // namespace refold
