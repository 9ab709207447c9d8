// SmolLM3: Llama in which every fourth layer does not rotate queries and keys (NoPE); windows where the
// checkpoint uses them.
#include "core/error.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::smollm3_family {
namespace {

constexpr const char* kName = "smollm3";
constexpr size_t kPeriod = 4;  // llama.cpp's n_no_rope_layer_step

std::vector<bool> usual_rotation(size_t layers, size_t period) {
    std::vector<bool> rotated;
    for (size_t l = 0; l < layers; ++l) rotated.push_back((l + 1) % period != 0);
    return rotated;
}

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::interleaved);
    c.rotated = read_rotated(keys, usual_rotation(static_cast<size_t>(keys.size("block_count")), kPeriod));
    if (keys.has("attention.sliding_window_pattern")) c.windows = read_windows(keys, 1);
    return c;
}

std::vector<bool> rotation_from_hf(const HfConfig& config, size_t layers) {
    const auto period = static_cast<size_t>(config.integer("no_rope_layer_interval"));
    if (period == 0) fail(ErrorCode::input, "config.json", "field 'no_rope_layer_interval' must not be 0");
    const nlohmann::json* flags = config.find("no_rope_layers");
    if (flags == nullptr) return usual_rotation(layers, period);
    if (!flags->is_array() || flags->size() != layers)
        fail(ErrorCode::input, "config.json",
             "field 'no_rope_layers' must have one entry for each of {} layers", layers);
    std::vector<bool> rotated;
    for (const auto& flag : *flags) {
        if (flag != 0 && flag != 1)
            fail(ErrorCode::input, "config.json", "field 'no_rope_layers' must be a list of 0 and 1, got {}",
                 flags->dump());
        rotated.push_back(flag == 1);
    }
    return rotated;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    write_rope(config, out);
    const auto layers = static_cast<size_t>(config.integer("num_hidden_layers"));
    const std::vector<bool> rotated = rotation_from_hf(config, layers);
    if (rotated != usual_rotation(layers, kPeriod)) out.flags(kRotatedKey, rotated);
    const bool used = config.boolean("use_sliding_window", false) && config.has("sliding_window");
    const std::vector<bool> windowed =
        layers_with_window(config, [&](size_t layer) { return used && !rotated[layer]; });
    check_windows_are_used(windowed, used);
    if (used) write_windows(config.integer("sliding_window"), windowed, out);
}

nlohmann::json write_hf_config(const Model& model) {
    const ModelConfig& c = model.config;
    nlohmann::json out = hf_common(model, {}, "SmolLM3ForCausalLM", kName);
    hf_rope(model, out);
    biases_to_hf(model, out);
    nlohmann::json rotated = nlohmann::json::array();
    for (size_t l = 0; l < model.topology.layers.size(); ++l) rotated.push_back(c.rotates(l) ? 1 : 0);
    out["no_rope_layers"] = std::move(rotated);
    windows_to_hf(model, out);
    out["use_sliding_window"] = out.contains("sliding_window");
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = llama_layer_slots(hf_rotary),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"smollm3"},
    .hf_prefix = "model.",
    .hf_unread = {{"max_window_layers"}, {"sliding_window"}},  // without use_sliding_window
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        refuse_rotation_in_stock(model, false);
        refuse_in_stock(model, {Slot::attn_o_bias, Slot::ffn_up_bias, Slot::ffn_down_bias});
        if (!model.config.windows.empty()) fail_stock(model, "the sliding windows");
        if (model.config.rotated != usual_rotation(model.topology.layers.size(), kPeriod))
            fail_stock(model, "which layers rotate queries and keys");
        return {model, {}};
    },
};

}  // namespace refold::smollm3_family
