// Qwen3 with mixtures of experts, in all layers or in some.
#include <algorithm>

#include "core/error.h"
#include "model/families/common/experts.h"
#include "model/families/common/llama.h"
#include "model/families/common/qwen.h"
#include "model/families/common/stock.h"

namespace refold::qwen3moe_family {
namespace {

constexpr const char* kName = "qwen3moe";
constexpr ExpertFields kExperts = {"num_experts", "moe_intermediate_size"};

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_mixture(keys, Activation::silu, true);
    finish_qwen_config(keys, c);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    if (config.boolean("attention_bias", false))
        fail(ErrorCode::unsupported, "config.json", "field 'attention_bias' is not supported for Qwen3");
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    write_rope(config, out);
    if (config.boolean("use_sliding_window", false) && config.has("sliding_window"))
        write_windows(config.integer("sliding_window"),
                      std::vector<bool>(static_cast<size_t>(config.integer("num_hidden_layers")), true), out);
    write_experts(config, kExperts, out);
    write_expert_norm(config, true, out);
}

nlohmann::json write_hf_config(const Model& model) {
    const ModelConfig& c = model.config;
    if (std::find(c.windows.begin(), c.windows.end(), 0) != c.windows.end())
        fail(ErrorCode::unsupported, "export",
             "a configuration of 'qwen3_moe' has the window on every layer");
    nlohmann::json out = qwen_to_hf(model, "Qwen3MoeForCausalLM", "qwen3_moe");
    out["head_dim"] = c.head_dim;
    out["norm_topk_prob"] = c.norm_expert_weights;
    out["mlp_only_layers"] = nlohmann::json::array();
    for (size_t l = 0; l < c.experts.size(); ++l) {
        if (c.experts[l] == 0) out["mlp_only_layers"].push_back(l);
    }
    experts_to_hf(model, kExperts, out);
    return out;
}

std::vector<SlotDescription> layer_slots() {
    return with_experts(
        qwen_layer_slots({
            {Slot::attn_q_norm, "blk.{}.attn_q_norm.weight", true, "@layers.{}.self_attn.q_norm.weight"},
            {Slot::attn_k_norm, "blk.{}.attn_k_norm.weight", true, "@layers.{}.self_attn.k_norm.weight"},
        }),
        expert_slots({"@layers.{}.mlp.gate.weight", "@layers.{}.mlp.experts.[].gate_proj.weight",
                      "@layers.{}.mlp.experts.[].up_proj.weight",
                      "@layers.{}.mlp.experts.[].down_proj.weight"}),
        true);
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = layer_slots(),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"qwen3_moe"},
    .hf_prefix = "model.",
    .hf_unread = {{"max_window_layers"}, {"sliding_window"}, {"use_mrope", "false"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        check_mixture_in_stock(model, true);
        return qwen_to_stock(model);
    },
};

}  // namespace refold::qwen3moe_family
