#include "model/families/common/granite.h"

namespace refold {

void read_granite_multipliers(const FamilyKeys& keys, ModelConfig& c) {
    c.rope = read_rope(keys, c, RopeKind::interleaved);
    c.embedding_scale = keys.positive("embedding_scale", 1.0);
    c.residual_scale = keys.positive("residual_scale", 1.0);
    c.logit_scale = 1.0F / keys.positive("logit_scale", 1.0);
}

void granite_from_hf(const HfConfig& config, FamilyWriter& out) {
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    write_rope(config, out);
    out.real("attention.scale", config.real("attention_multiplier", 1.0));
    out.real("embedding_scale", config.real("embedding_multiplier", 1.0));
    out.real("residual_scale", config.real("residual_multiplier", 1.0));
    out.real("logit_scale", config.real("logits_scaling", 1.0));
}

nlohmann::json granite_to_hf(const Model& model, const char* architecture, const char* model_type) {
    nlohmann::json out = hf_common(model, {}, architecture, model_type);
    hf_rope(model, out);
    out["attention_multiplier"] = model.config.attention_scale;
    out["embedding_multiplier"] = model.config.embedding_scale;
    out["residual_multiplier"] = model.config.residual_scale;
    out["logits_scaling"] = 1.0 / static_cast<double>(model.config.logit_scale);
    return out;
}

}  // namespace refold
