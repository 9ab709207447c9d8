// Looped Llama as llama.cpp stores it, under the name of the model that it was made for: a block of layers
// that runs num_loops times, with the final norm after every loop or after the last one only.
#include "core/error.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::nanbeige_family {
namespace {

constexpr const char* kName = "nanbeige";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::interleaved);
    return c;
}

std::vector<SlotDescription> layer_slots() {
    std::vector<SlotDescription> slots = without_biases(llama_layer_slots(hf_rotary));
    // Of the last layer of a loop: the final norm.
    slots.push_back({Slot::ffn_output_norm, "blk.{}.loop_norm.weight", false, nullptr});
    return slots;
}

// The loops written out, as a Llama, which has no norms between them.
StockModel to_stock(const Model& model) {
    refuse_rotation_in_stock(model, true);
    refuse_in_stock(model, {Slot::ffn_output_norm});
    StockModel out{model, {}};
    out.model.metadata = renamed_metadata(model.metadata, kName, "llama");
    for (const char* key : {"llama.num_loops", "llama.skip_loop_final_norm"}) out.model.metadata.erase(key);
    out.model.family = &find_family("llama");
    return out;
}

nlohmann::json write_hf_config(const Model& model) {
    for (const Slots& slots : model.topology.layers) {
        if (slots.contains(Slot::ffn_output_norm))
            fail(ErrorCode::unsupported, "export", "a Llama checkpoint has no norms between the loops ({})",
                 slot_name(Slot::ffn_output_norm));
    }
    nlohmann::json out = hf_common(model, {}, "LlamaForCausalLM", "llama");
    hf_rope(model, out);
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
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

}  // namespace refold::nanbeige_family
