// Qwen2 and Qwen2.5: Llama with biases on Q, K and V and rotation by halves; windows on the upper layers
// where the checkpoint uses them.
#include "core/error.h"
#include "model/families/common.h"
#include "model/families/families.h"

namespace refold {
namespace {

constexpr const char* kName = "qwen2";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::halves);
    if (keys.has("attention.sliding_window_pattern")) c.windows = read_windows(keys, 1);
    return c;
}

void read_hf_config(const nlohmann::json& json, GgufMetadata& metadata) {
    const HfConfig config(json);
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, 1e-6, out);
    write_rope(config, 10000.0, out);
    if (!config.boolean("use_sliding_window", false)) return;
    const auto full = static_cast<size_t>(config.integer("max_window_layers", 28));
    write_windows(config.integer("sliding_window", 4096),
                  layers_with_window(config, [&](size_t layer) { return layer >= full; }), out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, {}, "Qwen2ForCausalLM", "qwen2");
    hf_rope(model, out);
    const auto& windows = model.config.windows;
    const auto first = std::find_if(windows.begin(), windows.end(), [](int64_t w) { return w > 0; });
    out["use_sliding_window"] = first != windows.end();
    if (first == windows.end()) return out;
    if (std::find(first, windows.end(), 0) != windows.end())
        fail(ErrorCode::unsupported, "export", "Qwen2's configuration has windows on its upper layers only");
    out["sliding_window"] = *first;
    out["max_window_layers"] = first - windows.begin();
    return out;
}

}  // namespace

const Family kQwen2Family = {
    .name = kName,
    .position_slots =
        {
            {Slot::attn_norm, "blk.{}.attn_norm.weight", true, "@layers.{}.input_layernorm.weight"},
            {Slot::attn_q, "blk.{}.attn_q.weight", true, "@layers.{}.self_attn.q_proj.weight"},
            {Slot::attn_k, "blk.{}.attn_k.weight", true, "@layers.{}.self_attn.k_proj.weight"},
            {Slot::attn_v, "blk.{}.attn_v.weight", true, "@layers.{}.self_attn.v_proj.weight"},
            {Slot::attn_o, "blk.{}.attn_output.weight", true, "@layers.{}.self_attn.o_proj.weight"},
            {Slot::attn_q_bias, "blk.{}.attn_q.bias", true, "@layers.{}.self_attn.q_proj.bias"},
            {Slot::attn_k_bias, "blk.{}.attn_k.bias", true, "@layers.{}.self_attn.k_proj.bias"},
            {Slot::attn_v_bias, "blk.{}.attn_v.bias", true, "@layers.{}.self_attn.v_proj.bias"},
            {Slot::ffn_norm, "blk.{}.ffn_norm.weight", true, "@layers.{}.post_attention_layernorm.weight"},
            {Slot::ffn_gate, "blk.{}.ffn_gate.weight", true, "@layers.{}.mlp.gate_proj.weight"},
            {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@layers.{}.mlp.up_proj.weight"},
            {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@layers.{}.mlp.down_proj.weight"},
        },
    .model_slots =
        {
            {Slot::token_embd, "token_embd.weight", true, "@embed_tokens.weight"},
            {Slot::output_norm, "output_norm.weight", true, "@norm.weight"},
            {Slot::output, "output.weight", true, "lm_head.weight", hf_plain, "token_embd.weight"},
        },
    .read_config = read_config,
    .hf_model_types = {"qwen2"},
    .hf_prefix = "model.",
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        if (model.config.rope.dynamic_factor > 0) fail_stock(model, "dynamic rope scaling");
        if (!model.config.windows.empty()) fail_stock(model, "the sliding windows");
        return {model, {}};
    },
};

}  // namespace refold
