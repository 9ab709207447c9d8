// ERNIE 4.5 (dense): Llama whose checkpoints rotate neighboring pairs, with a head size of its own.
#include "core/error.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::ernie4_5_family {
namespace {

constexpr const char* kName = "ernie4_5";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::interleaved);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    write_rope(config, out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, {}, "Ernie4_5ForCausalLM", kName);
    hf_rope(model, out);
    out["head_dim"] = model.config.head_dim;
    out["use_bias"] = model.topology.has(0, Slot::attn_q_bias);
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = llama_layer_slots(hf_plain),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"ernie4_5"},
    .hf_prefix = "model.",
    .hf_bias = "use_bias",
    .hf_unread = {{"compression_ratio", "1.0"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        refuse_rotation_in_stock(model, false);
        refuse_in_stock(model, {Slot::attn_o_bias, Slot::ffn_up_bias, Slot::ffn_down_bias});
        return {model, {}};
    },
};

}  // namespace refold::ernie4_5_family
