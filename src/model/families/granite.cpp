// Granite 3 (dense): Llama with four multipliers: of embeddings, attention scores, what modules add to the
// residual stream, and logits.
#include "core/error.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold {
namespace {

constexpr const char* kName = "granite";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::interleaved);
    c.embedding_scale = keys.positive("embedding_scale", 1.0);
    c.residual_scale = keys.positive("residual_scale", 1.0);
    c.logit_scale = 1.0F / keys.positive("logit_scale", 1.0);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, 1e-6, out);
    write_rope(config, 10000.0, out);
    out.real("attention.scale", config.real("attention_multiplier", 1.0));
    out.real("embedding_scale", config.real("embedding_multiplier", 1.0));
    out.real("residual_scale", config.real("residual_multiplier", 1.0));
    out.real("logit_scale", config.real("logits_scaling", 1.0));
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, {}, "GraniteForCausalLM", kName);
    hf_rope(model, out);
    biases_to_hf(model, out);
    out["attention_multiplier"] = model.config.attention_scale;
    out["embedding_multiplier"] = model.config.embedding_scale;
    out["residual_multiplier"] = model.config.residual_scale;
    out["logits_scaling"] = 1.0 / static_cast<double>(model.config.logit_scale);
    return out;
}

}  // namespace

extern const Family granite_family;
const Family granite_family = {
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

}  // namespace refold
