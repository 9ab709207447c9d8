#include "model/families/common/qwen.h"

#include <algorithm>

#include "core/error.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold {

std::vector<SlotDescription> qwen_layer_slots(const std::vector<SlotDescription>& of_attention) {
    std::vector<SlotDescription> slots = {
        {Slot::attn_norm, "blk.{}.attn_norm.weight", true, "@layers.{}.input_layernorm.weight"},
        {Slot::attn_q, "blk.{}.attn_q.weight", true, "@layers.{}.self_attn.q_proj.weight"},
        {Slot::attn_k, "blk.{}.attn_k.weight", true, "@layers.{}.self_attn.k_proj.weight"},
        {Slot::attn_v, "blk.{}.attn_v.weight", true, "@layers.{}.self_attn.v_proj.weight"},
        {Slot::attn_o, "blk.{}.attn_output.weight", true, "@layers.{}.self_attn.o_proj.weight"},
    };
    slots.insert(slots.end(), of_attention.begin(), of_attention.end());
    slots.insert(
        slots.end(),
        {{Slot::ffn_norm, "blk.{}.ffn_norm.weight", true, "@layers.{}.post_attention_layernorm.weight"},
         {Slot::ffn_gate, "blk.{}.ffn_gate.weight", true, "@layers.{}.mlp.gate_proj.weight"},
         {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@layers.{}.mlp.up_proj.weight"},
         {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@layers.{}.mlp.down_proj.weight"}});
    return slots;
}

std::vector<UnreadField> qwen_unread() {
    return {{"max_window_layers"}, {"sliding_window"}, {"use_mrope", "false"}};
}

ModelConfig read_qwen_config(const FamilyKeys& keys) {
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    finish_qwen_config(keys, c);
    return c;
}

void finish_qwen_config(const FamilyKeys& keys, ModelConfig& c) {
    c.rope = read_rope(keys, c, RopeKind::halves);
    if (keys.has("attention.sliding_window_pattern")) c.windows = read_windows(keys, 1);
}

void qwen_from_hf(const HfConfig& config, FamilyWriter& out) {
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    write_rope(config, out);
    const bool used = config.boolean("use_sliding_window", false) && config.has("sliding_window");
    const size_t full = used ? static_cast<size_t>(config.integer("max_window_layers")) : 0;
    const std::vector<bool> windowed =
        layers_with_window(config, [&](size_t layer) { return used && layer >= full; });
    check_windows_are_used(windowed, used);
    if (used) write_windows(config.integer("sliding_window"), windowed, out);
}

nlohmann::json qwen_to_hf(const Model& model, const char* architecture, const char* model_type) {
    nlohmann::json out = hf_common(model, {}, architecture, model_type);
    hf_rope(model, out);
    const auto& windows = model.config.windows;
    const auto first = std::find_if(windows.begin(), windows.end(), [](int64_t w) { return w > 0; });
    out["use_sliding_window"] = first != windows.end();
    if (first == windows.end()) return out;
    if (std::find(first, windows.end(), 0) != windows.end())
        fail(ErrorCode::unsupported, "export",
             "the configuration of '{}' has windows on its upper layers only", model_type);
    out["sliding_window"] = *first;
    out["max_window_layers"] = first - windows.begin();
    return out;
}

StockModel qwen_to_stock(const Model& model) {
    refuse_rotation_in_stock(model, false);
    if (!model.config.windows.empty()) fail_stock(model, "the sliding windows");
    return {model, {}};
}

}  // namespace refold
