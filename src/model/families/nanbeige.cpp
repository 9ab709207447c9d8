// Looped Llama as llama.cpp stores it, under the name of the model that it was made for: a block of layers
// that runs num_loops times, with the final norm after the last loop only (one between loops is refused).
#include "core/error.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold {
namespace {

constexpr const char* kName = "nanbeige";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::interleaved);
    if (keys.metadata().integer(keys.name("num_loops"), 1) > 1 &&
        !keys.boolean("skip_loop_final_norm", false))
        fail(ErrorCode::unsupported, kName, "key '{}': the final norm between loops is not supported",
             keys.name("skip_loop_final_norm"));
    return c;
}

std::vector<SlotDescription> layer_slots() {
    std::vector<SlotDescription> slots = llama_layer_slots(hf_rotary);
    std::erase_if(slots, [](const SlotDescription& d) { return properties(d.slot).kind == SlotKind::bias; });
    return slots;
}

// The loops written out, as a Llama.
StockModel to_stock(const Model& model) {
    refuse_rotation_in_stock(model, true);
    StockModel out{model, {}};
    out.model.metadata = renamed_metadata(model.metadata, kName, "llama");
    for (const char* key : {"llama.num_loops", "llama.skip_loop_final_norm"}) out.model.metadata.erase(key);
    out.model.family = &find_family("llama");
    return out;
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, {}, "LlamaForCausalLM", "llama");
    hf_rope(model, out);
    return out;
}

}  // namespace

extern const Family nanbeige_family;
const Family nanbeige_family = {
    .name = kName,
    .layer_slots = layer_slots(),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {},
    .hf_prefix = "model.",
    .read_hf_config = [](const HfConfig&, GgufMetadata&) {},
    .write_hf_config = write_hf_config,
    .to_stock = to_stock,
};

}  // namespace refold
