// Qwen2 and Qwen2.5: biases on Q, K and V.
#include "model/families/common/llama.h"
#include "model/families/common/qwen.h"

namespace refold::qwen2_family {
namespace {

constexpr const char* kName = "qwen2";

ModelConfig read_config(const GgufMetadata& metadata) {
    return read_qwen_config(FamilyKeys(metadata, kName));
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    qwen_from_hf(config, out);
}

nlohmann::json write_hf_config(const Model& model) { return qwen_to_hf(model, "Qwen2ForCausalLM", "qwen2"); }

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = qwen_layer_slots({
        {Slot::attn_q_bias, "blk.{}.attn_q.bias", true, "@layers.{}.self_attn.q_proj.bias"},
        {Slot::attn_k_bias, "blk.{}.attn_k.bias", true, "@layers.{}.self_attn.k_proj.bias"},
        {Slot::attn_v_bias, "blk.{}.attn_v.bias", true, "@layers.{}.self_attn.v_proj.bias"},
    }),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"qwen2"},
    .hf_prefix = "model.",
    .hf_unread = qwen_unread(),
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = qwen_to_stock,
};

}  // namespace refold::qwen2_family
