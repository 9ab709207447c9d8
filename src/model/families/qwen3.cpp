// Qwen3 (dense): Qwen2 without biases, with RMS norms over each head's queries and keys and a head size of
// its own.
#include "core/error.h"
#include "model/families/common/llama.h"
#include "model/families/common/qwen.h"

namespace refold::qwen3_family {
namespace {

constexpr const char* kName = "qwen3";

ModelConfig read_config(const GgufMetadata& metadata) {
    return read_qwen_config(FamilyKeys(metadata, kName));
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    if (config.boolean("attention_bias", false))
        fail(ErrorCode::unsupported, "config.json", "field 'attention_bias' is not supported for Qwen3");
    FamilyWriter out(metadata, kName);
    qwen_from_hf(config, out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = qwen_to_hf(model, "Qwen3ForCausalLM", "qwen3");
    out["head_dim"] = model.config.head_dim;
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = qwen_layer_slots({
        {Slot::attn_q_norm, "blk.{}.attn_q_norm.weight", true, "@layers.{}.self_attn.q_norm.weight"},
        {Slot::attn_k_norm, "blk.{}.attn_k_norm.weight", true, "@layers.{}.self_attn.k_norm.weight"},
    }),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"qwen3"},
    .hf_prefix = "model.",
    .hf_unread = qwen_unread(),
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = qwen_to_stock,
};

}  // namespace refold::qwen3_family
