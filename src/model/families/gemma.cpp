// Gemma 1.
#include "model/families/common/gemma.h"

namespace refold {
namespace {

constexpr const char* kName = "gemma";

ModelConfig read_config(const GgufMetadata& metadata) {
    return read_gemma_config(FamilyKeys(metadata, kName));
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_gemma_keys(config, out);
}

nlohmann::json write_hf_config(const Model& model) { return gemma_to_hf(model, "GemmaForCausalLM", "gemma"); }

}  // namespace

extern const Family gemma_family;
const Family gemma_family = {
    .name = kName,
    .layer_slots = gemma_layer_slots(false, false),
    .model_slots = gemma_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"gemma"},
    .hf_prefix = "model.",
    .hf_tied = true,
    .hf_unread = {{"hidden_act"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = gemma_to_stock,
};

}  // namespace refold
