// gpt-oss: mixtures of experts with biases and a clamped SwiGLU, attention sinks, windows on every other
// layer. Stored as "gpt-oss" in GGUF.
#include "core/error.h"
#include "model/families/common/experts.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::gpt_oss_family {
namespace {

constexpr const char* kName = "gpt-oss";
constexpr ExpertFields kExperts = {"num_local_experts"};
constexpr int64_t kPeriod = 2;  // of layers without a window

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_mixture(keys, Activation::swiglu_clamped, true);
    c.rope = read_rope(keys, c, RopeKind::halves);
    c.windows = read_windows(keys, kPeriod);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    // The activation is the family's own, whatever the field says.
    if (const std::string name = config.string("hidden_act", "silu"); name != "silu")
        fail(ErrorCode::unsupported, "config.json", "field 'hidden_act' ('{}') is not supported for gpt-oss",
             name);
    if (const nlohmann::json* packed = config.find("quantization_config")) {
        const std::string method = packed->is_object() ? packed->value("quant_method", "") : packed->dump();
        if (method != "mxfp4")
            fail(ErrorCode::unsupported, "config.json",
                 "field 'quantization_config': quantization '{}' is not supported; known: mxfp4", method);
    }
    FamilyWriter out(metadata, kName);
    if (!config.boolean("attention_bias", true))
        fail(ErrorCode::unsupported, "config.json",
             "field 'attention_bias' (false) is not supported for gpt-oss");
    if (!config.has("rope_scaling"))
        fail(ErrorCode::unsupported, "config.json",
             "field 'rope_scaling' is null: transformers 4 does not scale the rotation then, and "
             "transformers 5 does "
             "as in gpt-oss-20b (YaRN by 32); write {{\"rope_type\": \"default\"}} or what is meant");
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    write_rope(config, out);
    write_experts(config, kExperts, out);
    write_windows(config.integer("sliding_window"),
                  layers_with_window(config, [](size_t layer) { return layer % kPeriod == 0; }), out);
}

nlohmann::json write_hf_config(const Model& model) {
    HfFields fields;
    nlohmann::json out = hf_common(model, fields, "GptOssForCausalLM", "gpt_oss");
    out[fields.activation] = "silu";
    out["head_dim"] = model.config.head_dim;
    out["attention_bias"] = true;
    hf_rope(model, out);
    if (!out.contains("rope_scaling"))
        out["rope_scaling"] = {{"rope_type", "default"}};  // the class's is YaRN
    windows_to_hf(model, out);
    experts_to_hf(model, kExperts, out);
    return out;
}

std::vector<SlotDescription> layer_slots() {
    constexpr unsigned kGateUp = hf_stacked | hf_interleaved;
    std::vector<SlotDescription> slots =
        with_experts(llama_layer_slots(hf_plain),
                     expert_slots({.router = "@layers.{}.mlp.router.weight",
                                   .gate = "@layers.{}.mlp.experts.gate_up_proj",
                                   .up = "@layers.{}.mlp.experts.gate_up_proj",
                                   .down = "@layers.{}.mlp.experts.down_proj",
                                   .stacked = kGateUp | hf_transposed,
                                   .down_layout = hf_transposed}),
                     false);
    for (SlotDescription& slot : slots) {
        if (slot.slot == Slot::ffn_norm) slot.tensor = "blk.{}.post_attention_norm.weight";
        if (properties(slot.slot).kind == SlotKind::bias) slot.required = true;
    }
    const std::vector<SlotDescription> own = {
        {Slot::attn_sinks, "blk.{}.attn_sinks.weight", true, "@layers.{}.self_attn.sinks"},
        {Slot::ffn_router_bias, "blk.{}.ffn_gate_inp.bias", true, "@layers.{}.mlp.router.bias"},
        {Slot::ffn_gate_exps_bias, "blk.{}.ffn_gate_exps.bias", true,
         "@layers.{}.mlp.experts.gate_up_proj_bias", kGateUp},
        {Slot::ffn_up_exps_bias, "blk.{}.ffn_up_exps.bias", true, "@layers.{}.mlp.experts.gate_up_proj_bias",
         kGateUp},
        {Slot::ffn_down_exps_bias, "blk.{}.ffn_down_exps.bias", true,
         "@layers.{}.mlp.experts.down_proj_bias"}};
    slots.insert(slots.end(), own.begin(), own.end());
    return slots;
}

StockModel to_stock(const Model& model) {
    check_mixture_in_stock(model, true);
    if (model.config.rope.dynamic_factor > 0) fail_stock(model, "dynamic rope scaling");
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        if ((model.config.window(l) > 0) != (l % kPeriod == 0))
            fail_stock(model, "which layers have windows");
    }
    StockModel out{with_own_output(model), {}};
    if (model.metadata.has(std::string(kName) + "." + kYarnTruncateKey)) {
        out.model.metadata.erase(std::string(kName) + "." + kYarnTruncateKey);
        out.model.topology.globals.erase(Slot::rope_freqs);
        out.model.drop_unreferenced();
        out.note =
            "llama.cpp rounds the range of frequencies that YaRN stretches: its logits differ slightly";
    }
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        for (const auto& [slot, expression] : model.topology.layers[l]) {
            if (!is_vector(slot) || !belongs_to_experts(slot) || slot == Slot::ffn_router_bias) continue;
            Tensor& bias = out.model.tensors.at(std::get<Dense>(expression).tensor);
            bias.shape = {bias.elements() / model.config.n_expert, model.config.n_expert};
        }
    }
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = layer_slots(),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"gpt_oss"},
    .hf_prefix = "model.",
    .hf_unread = {{"experts_per_token"},
                  {"initial_context_length"},
                  {"swiglu_alpha", "1.702"},
                  {"swiglu_limit", "7.0"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = to_stock,
};

}  // namespace refold::gpt_oss_family
