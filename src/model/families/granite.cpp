// Granite 3 (dense).
#include "model/families/common/granite.h"

#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::granite_family {
namespace {

constexpr const char* kName = "granite";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    read_granite_multipliers(keys, c);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    granite_from_hf(config, out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = granite_to_hf(model, "GraniteForCausalLM", kName);
    biases_to_hf(model, out);
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = llama_layer_slots(hf_rotary),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"granite"},
    .hf_prefix = "model.",
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        refuse_rotation_in_stock(model, true);
        return {model, {}};
    },
};

}  // namespace refold::granite_family
