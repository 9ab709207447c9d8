// OLMoE: Llama with mixtures of experts, and RMS norms over the queries and over the keys of all heads at
// once.
#include <algorithm>

#include "core/error.h"
#include "model/families/common/experts.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::olmoe_family {
namespace {

constexpr const char* kName = "olmoe";
constexpr ExpertFields kExperts = {"num_experts"};

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_mixture(keys, Activation::silu, false);
    c.rope = read_rope(keys, c, RopeKind::halves);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    write_rope(config, out);
    write_experts(config, kExperts, out);
    write_expert_norm(config, false, out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, {}, "OlmoeForCausalLM", kName);
    hf_rope(model, out);
    out["attention_bias"] = model.topology.has(0, Slot::attn_q_bias);
    out["norm_topk_prob"] = model.config.norm_expert_weights;
    experts_to_hf(model, kExperts, out);
    return out;
}

std::vector<SlotDescription> layer_slots() {
    std::vector<SlotDescription> slots =
        with_experts(llama_layer_slots(hf_plain),
                     expert_slots({"@layers.{}.mlp.gate.weight", "@layers.{}.mlp.experts.[].gate_proj.weight",
                                   "@layers.{}.mlp.experts.[].up_proj.weight",
                                   "@layers.{}.mlp.experts.[].down_proj.weight"}),
                     false);
    std::ranges::copy(norms_of_all_heads(), std::back_inserter(slots));
    return slots;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = layer_slots(),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {kName},
    .hf_prefix = "model.",
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        refuse_rotation_in_stock(model, false);
        refuse_head_width_in_stock(model);
        refuse_in_stock(model, {Slot::attn_q_bias, Slot::attn_o_bias});
        check_mixture_in_stock(model, false);
        return {with_own_output(model), {}};
    },
};

}  // namespace refold::olmoe_family
