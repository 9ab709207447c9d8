// Gemma 2: Gemma with soft caps, norms after the modules and windows on every other layer.
#include "model/families/common/gemma.h"

namespace refold::gemma2_family {
namespace {

constexpr const char* kName = "gemma2";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_gemma_config(keys);
    c.attention_softcap = keys.at_least_zero("attn_logit_softcapping", 50.0);
    c.logit_softcap = keys.at_least_zero("final_logit_softcapping", 30.0);
    c.windows = read_windows(keys, 2);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_gemma_keys(config, kGemmaFields, out);
    write_gemma_scale(config, kName, metadata, out);
    for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"})
        write_soft_cap(config, cap, out);
    write_windows(config.integer("sliding_window"),
                  layers_with_window(config, [](size_t l) { return l % 2 == 0; }), out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = gemma_to_hf(model, "Gemma2ForCausalLM", "gemma2");
    const auto cap = [](float value) { return value > 0 ? nlohmann::json(value) : nlohmann::json(); };
    out["attn_logit_softcapping"] = cap(model.config.attention_softcap);
    out["final_logit_softcapping"] = cap(model.config.logit_softcap);
    gemma_windows_to_hf(model, out);
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = gemma_layer_slots(true, false),
    .model_slots = gemma_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"gemma2"},
    .hf_prefix = "model.",
    .hf_unread = {{"hidden_act"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = gemma_to_stock,
};

}  // namespace refold::gemma2_family
