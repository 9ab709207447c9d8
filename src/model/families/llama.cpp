// Llama 1-3, TinyLlama, SmolLM, MobileLLM, Mistral and others that are stored as general.architecture
// "llama": RMSNorm before each module, rotary positions, grouped-query attention, SwiGLU; Mistral's sliding
// window.
#include "model/families/common/llama.h"

#include "core/error.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold {
namespace {

constexpr const char* kName = "llama";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::interleaved);
    c.windows = read_windows(keys, 0);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, 1e-6, out);
    write_rope(config, 10000.0, out);
    const bool mistral = config.string("model_type", "") == "mistral";
    if (mistral && config.boolean("layer_sharing", false))
        fail(ErrorCode::unsupported, "config.json", "field 'layer_sharing' is not supported for Mistral");
    if (mistral && config.has("sliding_window")) {
        write_windows(config.integer("sliding_window"),
                      layers_with_window(config, [](size_t) { return true; }), out);
    }
}

nlohmann::json write_hf_config(const Model& model) {
    const ModelConfig& c = model.config;
    const bool mistral = !c.windows.empty();
    nlohmann::json out = hf_common(model, {}, mistral ? "MistralForCausalLM" : "LlamaForCausalLM",
                                   mistral ? "mistral" : "llama");
    hf_rope(model, out);
    if (mistral) {
        out["sliding_window"] = c.windows.front();
    } else {
        biases_to_hf(model, out);
    }
    return out;
}

}  // namespace

extern const Family llama_family;
const Family llama_family = {
    .name = kName,
    .layer_slots = llama_layer_slots(hf_rotary),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"llama", "mistral", "mobilellm"},
    .hf_prefix = "model.",
    .hf_layer_sharing = true,
    .hf_unread = {{"activation", "\"swiglu\""}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        refuse_rotation_in_stock(model, true);
        if (model.config.windows.empty()) return {model, {}};
        return {
            model,
            fmt::format("llama.cpp ignores the sliding window of this family: its logits are equal up to {} "
                        "tokens",
                        model.config.windows.front())};
    },
};

}  // namespace refold
