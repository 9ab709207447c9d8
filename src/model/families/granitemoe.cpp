// Granite 3 with mixtures of experts.
#include "model/families/common/experts.h"
#include "model/families/common/granite.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::granitemoe_family {
namespace {

constexpr const char* kName = "granitemoe";
constexpr ExpertFields kExperts = {"num_local_experts"};

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_mixture(keys, Activation::silu, true);
    read_granite_multipliers(keys, c);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    granite_from_hf(config, out);
    write_experts(config, kExperts, out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = granite_to_hf(model, "GraniteMoeForCausalLM", kName);
    out["attention_bias"] = model.topology.has(0, Slot::attn_q_bias);
    experts_to_hf(model, kExperts, out);
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = with_experts(llama_layer_slots(hf_rotary),
                                expert_slots({.router = "@layers.{}.block_sparse_moe.router.layer.weight",
                                              .gate = "@layers.{}.block_sparse_moe.input_linear.weight",
                                              .up = "@layers.{}.block_sparse_moe.input_linear.weight",
                                              .down = "@layers.{}.block_sparse_moe.output_linear.weight",
                                              .stacked = hf_stacked}),
                                false),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {kName},
    .hf_prefix = "model.",
    .hf_unread = {{"position_embedding_type", "\"rope\""}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        refuse_rotation_in_stock(model, true);
        check_mixture_in_stock(model, true);
        return {model, {}};
    },
};

}  // namespace refold::granitemoe_family
