// OLMo 2: Llama with RMS norms of what modules add instead of what they read, and RMS norms over the queries
// and over the keys of all heads at once.
#include <algorithm>

#include "core/error.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::olmo2_family {
namespace {

constexpr const char* kName = "olmo2";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    if (keys.has("attention.sliding_window"))
        fail(ErrorCode::unsupported, kName, "key '{}' (OLMo 3) is not supported",
             keys.name("attention.sliding_window"));
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::halves);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    write_rope(config, out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, {}, "Olmo2ForCausalLM", kName);
    hf_rope(model, out);
    out["attention_bias"] = model.topology.has(0, Slot::attn_q_bias);
    return out;
}

std::vector<SlotDescription> layer_slots() {
    std::vector<SlotDescription> slots = without_ffn_biases(llama_layer_slots(hf_plain));
    std::erase_if(slots, [](const SlotDescription& d) {
        return d.slot == Slot::attn_norm || d.slot == Slot::ffn_norm;
    });
    std::ranges::copy(norms_of_all_heads(), std::back_inserter(slots));
    std::ranges::copy(post_norms("@layers.{}.post_attention_layernorm.weight",
                                 "@layers.{}.post_feedforward_layernorm.weight"),
                      std::back_inserter(slots));
    return slots;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = layer_slots(),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"olmo2"},
    .hf_prefix = "model.",
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        refuse_rotation_in_stock(model, false);
        refuse_head_width_in_stock(model);
        refuse_in_stock(model, {Slot::attn_o_bias});
        return {with_own_output(model), {}};
    },
};

}  // namespace refold::olmo2_family
