// Cohere (Command R, Command R+, Aya 23): see common/cohere.h; the larger ones normalize each head's queries
// and keys with gains of its own.
#include "model/families/common/cohere.h"

#include "core/error.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"

namespace refold::cohere_family {
namespace {

constexpr const char* kName = "command-r";
constexpr size_t kLayersWithNorms = 64;  // llama.cpp reads norms of queries and keys from this number on

ModelConfig read_config(const GgufMetadata& metadata) {
    ModelConfig c = read_cohere_config(FamilyKeys(metadata, kName));
    c.norm_by_head = true;
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    cohere_from_hf(config, out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = cohere_to_hf(model, "CohereForCausalLM", "cohere");
    out["use_qk_norm"] = model.topology.has(0, Slot::attn_q_norm_all);
    return out;
}

std::vector<SlotDescription> layer_slots() {
    std::vector<SlotDescription> slots = cohere_layer_slots();
    slots.push_back({Slot::attn_q_norm_all, "blk.{}.attn_q_norm.weight", false,
                     "@layers.{}.self_attn.q_norm.weight", hf_by_head});
    slots.push_back({Slot::attn_k_norm_all, "blk.{}.attn_k_norm.weight", false,
                     "@layers.{}.self_attn.k_norm.weight", hf_by_head});
    return slots;
}

StockModel to_stock(const Model& model) {
    check_cohere_stock(model);
    const bool norms = model.topology.has(0, Slot::attn_q_norm_all);
    const size_t layers = model.topology.layers.size();
    if (norms != (layers >= kLayersWithNorms))
        fail_stock(model,
                   fmt::format("{} layers {} norms of queries and keys", layers, norms ? "with" : "without"));
    return {with_gains_as_rows(model), {}};
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = layer_slots(),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"cohere"},
    .hf_prefix = "model.",
    .hf_norms = "use_qk_norm",
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = to_stock,
};

}  // namespace refold::cohere_family
