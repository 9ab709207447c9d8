// Llama 1-3, TinyLlama, SmolLM, MobileLLM, Mistral, Mixtral and others that are stored as
// general.architecture "llama": RMSNorm before each module, rotary positions, grouped-query attention,
// SwiGLU; Mistral's sliding window; Mixtral's experts.
#include "model/families/common/llama.h"

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "model/families/common/experts.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::llama_family {
namespace {

constexpr const char* kName = "llama";
constexpr ExpertFields kExperts = {"num_local_experts"};

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_mixture(keys, Activation::silu, true);
    c.rope = read_rope(keys, c, RopeKind::interleaved);
    c.windows = read_windows(keys, 0);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    const std::string type = config.string("model_type", kName);
    const bool mixtral = type == "mixtral";
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    write_rope(config, out);
    if (mixtral) write_experts(config, kExperts, out);
    if ((mixtral || type == "mistral") && config.has("sliding_window")) {
        // transformers takes a Mistral with layer_types for a Ministral, which reads them.
        const std::vector<bool> all(static_cast<size_t>(config.integer("num_hidden_layers")), true);
        write_windows(config.integer("sliding_window"),
                      mixtral ? all : layers_with_window(config, [](size_t) { return true; }), out);
    }
}

nlohmann::json write_hf_config(const Model& model) {
    const ModelConfig& c = model.config;
    const bool mixture = c.n_expert > 0, windows = !c.windows.empty();
    nlohmann::json out;
    if (mixture)
        out = hf_common(model, {}, "MixtralForCausalLM", "mixtral");
    else if (windows)
        out = hf_common(model, {}, "MistralForCausalLM", "mistral");
    else
        out = hf_common(model, {}, "LlamaForCausalLM", "llama");
    hf_rope(model, out);
    if (mixture) experts_to_hf(model, kExperts, out);
    const bool alike =
        std::adjacent_find(c.windows.begin(), c.windows.end(), std::not_equal_to<>()) == c.windows.end();
    if (!alike && mixture)
        fail(ErrorCode::unsupported, "export", "a configuration of 'mixtral' has the window on every layer");
    if (windows && alike) out["sliding_window"] = c.windows.front();
    if (!alike) windows_to_hf(model, out);
    if (!mixture && !windows) biases_to_hf(model, out);
    return out;
}

std::vector<SlotDescription> model_slots() {
    std::vector<SlotDescription> slots = llama_model_slots();
    for (SlotDescription& slot : slots) {
        if (slot.slot == Slot::output) slot.hf = "lm_head.weight|language_model.lm_head.weight";
    }
    return slots;
}

void write_layer_sharing(nlohmann::json& config, size_t /*stored*/, size_t repeats) {
    if (repeats > 1 || config.contains("layer_sharing")) config["layer_sharing"] = repeats > 1;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = with_experts(llama_layer_slots(hf_rotary),
                                expert_slots({"@layers.{}.block_sparse_moe.gate.weight",
                                              "@layers.{}.block_sparse_moe.experts.[].w1.weight",
                                              "@layers.{}.block_sparse_moe.experts.[].w3.weight",
                                              "@layers.{}.block_sparse_moe.experts.[].w2.weight"}),
                                true),
    .model_slots = model_slots(),
    .read_config = read_config,
    .hf_model_types = {"llama", "mistral", "mixtral", "mobilellm"},
    .hf_prefix = "model.|model.language_model.|language_model.model.",
    .hf_repeats = {.of_layer = [](const HfConfig& config) -> size_t {
                       return config.boolean("layer_sharing", false) ? 2 : 1;
                   },
                   .write = write_layer_sharing},
    .hf_unread = {{"activation", "\"swiglu\""}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        refuse_rotation_in_stock(model, true);
        check_mixture_in_stock(model, true);
        if (model.config.windows.empty()) return {model, {}};
        return {
            model,
            fmt::format("llama.cpp ignores the sliding window of this family: its logits are equal up to {} "
                        "tokens",
                        model.config.windows.front())};
    },
};

}  // namespace refold::llama_family
