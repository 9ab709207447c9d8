// Nemotron (Minitron): LayerNorm by 1 + weight with bias, an FFN without gate whose activation is the square
// of ReLU, rotation by halves of a part of each head.
#include "core/error.h"
#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::nemotron_family {
namespace {

constexpr const char* kName = "nemotron";

constexpr HfFields kFields = {.epsilon = "norm_eps"};

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::layer, Activation::relu_squared);
    c.rope = read_rope(keys, c, RopeKind::halves);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, kFields, NormKind::layer, Activation::relu_squared, out);
    write_rope(config, out);
    write_rotated_part(config, out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, kFields, "NemotronForCausalLM", kName);
    hf_rope(model, out);
    biases_to_hf(model, out);
    out["partial_rotary_factor"] = rotated_part(model.config);
    return out;
}

std::vector<SlotDescription> layer_slots() {
    std::vector<SlotDescription> slots = llama_layer_slots(hf_plain);
    std::erase_if(slots, [](const SlotDescription& d) {
        return d.slot == Slot::ffn_gate || d.slot == Slot::ffn_gate_bias;
    });
    for (SlotDescription& d : slots) {
        if (d.slot == Slot::attn_norm || d.slot == Slot::ffn_norm) d.layout = hf_plus_one;
    }
    slots.push_back({Slot::attn_norm_bias, "blk.{}.attn_norm.bias", true, "@layers.{}.input_layernorm.bias"});
    slots.push_back(
        {Slot::ffn_norm_bias, "blk.{}.ffn_norm.bias", true, "@layers.{}.post_attention_layernorm.bias"});
    return slots;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = layer_slots(),
    .model_slots =
        {
            {Slot::token_embd, "token_embd.weight", true, "@embed_tokens.weight"},
            {Slot::output_norm, "output_norm.weight", true, "@norm.weight", hf_plus_one},
            {Slot::output_norm_bias, "output_norm.bias", true, "@norm.bias"},
            {Slot::output, "output.weight", true, "lm_head.weight", hf_plain, "token_embd.weight"},
            {Slot::rope_freqs, "rope_freqs.weight", false, nullptr},
        },
    .read_config = read_config,
    .hf_model_types = {"nemotron"},
    .hf_prefix = "model.",
    .hf_unread = {{"rope_percent", "0.5"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        refuse_rotation_in_stock(model, false);
        refuse_head_width_in_stock(model);
        return {with_own_output(model), {}};
    },
};

}  // namespace refold::nemotron_family
