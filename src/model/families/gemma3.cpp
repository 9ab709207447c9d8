// Gemma 3 (text): Gemma 2 without soft caps; queries and keys are normalized, and windowed layers rotate by a
// base of their own.
#include "core/error.h"
#include "model/families/common/gemma.h"

namespace refold::gemma3_family {
namespace {

constexpr const char* kName = "gemma3";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_gemma_config(keys);
    c.logit_softcap = keys.at_least_zero("final_logit_softcapping", 0.0);
    c.windows = read_windows(keys, 6);
    c.local_rope = Rope{.kind = c.rope.kind,
                        .dims = c.rope.dims,
                        .base = keys.positive("rope.freq_base_swa", 10000.0),
                        .original_context = c.rope.original_context};
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    if (config.has("attn_logit_softcapping"))
        fail(ErrorCode::unsupported, "config.json",
             "field 'attn_logit_softcapping' is not supported for Gemma 3");
    FamilyWriter out(metadata, kName);
    write_gemma_keys(config, kGemmaFields, out);
    write_gemma_scale(config, kName, metadata, out);
    if (config.has("final_logit_softcapping")) write_soft_cap(config, "final_logit_softcapping", out);
    const auto period = static_cast<size_t>(config.integer("sliding_window_pattern"));
    if (period == 0) fail(ErrorCode::input, "config.json", "field 'sliding_window_pattern' must not be 0");
    write_windows(config.integer("sliding_window"),
                  layers_with_window(config, [&](size_t l) { return l % period != period - 1; }), out);
    out.real("rope.freq_base_swa", config.real("rope_local_base_freq"));
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = gemma_to_hf(model, "Gemma3ForCausalLM", "gemma3_text");
    if (model.config.logit_softcap > 0) out["final_logit_softcapping"] = model.config.logit_softcap;
    out["rope_local_base_freq"] = model.config.local_rope->base;
    gemma_windows_to_hf(model, out);
    // Read by transformers before layer_types existed.
    const auto& windows = model.config.windows;
    if (const auto full = std::find(windows.begin(), windows.end(), 0); full != windows.end())
        out["sliding_window_pattern"] = full - windows.begin() + 1;
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = gemma_layer_slots(true, true),
    .model_slots = gemma_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"gemma3_text"},
    .hf_prefix = "model.|language_model.model.|model.language_model.",
    .hf_unread = {{"_sliding_window_pattern"}, {"hidden_act"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = gemma_to_stock,
};

}  // namespace refold::gemma3_family
