// Hunyuan (dense, version 1): Llama with rotation by halves and RMS norms over each head's queries and keys
// after the rotation, whose base may be raised once and for all (`alpha`).
#include <cmath>

#include "core/error.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::hunyuan_dense_family {
namespace {

constexpr const char* kName = "hunyuan-dense";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::halves);
    c.norm_after_rope = true;
    return c;
}

// Scaling of type "dynamic" with `alpha` is not dynamic: the base is rope_theta * alpha ^ (d / (d - 2)).
bool write_alpha(const HfConfig& config, FamilyWriter& out) {
    const nlohmann::json* object = config.find("rope_scaling");
    if (object == nullptr || !object->is_object()) return false;
    const HfConfig scaling(*object);
    const double alpha = scaling.real("alpha", 0);
    if (scaling.string("rope_type", "default") != "dynamic" || alpha == 0) return false;
    if (!(alpha > 0))
        fail(ErrorCode::input, "config.json", "field 'rope_scaling.alpha' must be positive, got {}", alpha);
    if (const double factor = scaling.real("factor", 1); factor != 1)
        fail(ErrorCode::unsupported, "config.json",
             "field 'rope_scaling.factor' ({}) is not supported together with 'alpha'", factor);
    for (const char* field : {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) scaling.find(field);
    check_asked(scaling, "rope_scaling");
    const auto dims = static_cast<double>(head_dim_of(config));
    out.real("rope.freq_base", config.real("rope_theta") * std::pow(alpha, dims / (dims - 2)));
    return true;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    if (!write_alpha(config, out)) write_rope(config, out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, {}, "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense");
    hf_rope(model, out);
    out["head_dim"] = model.config.head_dim;
    out["attention_bias"] = model.topology.has(0, Slot::attn_q_bias);
    return out;
}

std::vector<SlotDescription> layer_slots() {
    std::vector<SlotDescription> slots = without_ffn_biases(llama_layer_slots(hf_plain));
    slots.push_back({Slot::attn_q_norm, "blk.{}.attn_q_norm.weight", true,
                     "@layers.{}.self_attn.query_layernorm.weight"});
    slots.push_back(
        {Slot::attn_k_norm, "blk.{}.attn_k_norm.weight", true, "@layers.{}.self_attn.key_layernorm.weight"});
    return slots;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = layer_slots(),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"hunyuan_v1_dense"},
    .hf_prefix = "model.",
    .hf_unread = {{"add_classification_head", "false"},
                  {"cla_share_factor"},
                  {"class_num"},
                  {"dense_list"},
                  {"mask_init_id"},
                  {"norm_type", "\"rms\""},
                  {"num_experts", "1"},
                  {"org_vocab_size"},
                  {"pool_type"},
                  {"position_embedding_xdrope", "false"},
                  {"text_end_id"},
                  {"text_start_id"},
                  {"use_cla", "false"},
                  {"use_qk_norm", "true"},
                  {"use_rotary_pos_emb", "true"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel {
        refuse_rotation_in_stock(model, true);
        refuse_in_stock(model, {Slot::attn_o_bias});
        return {model, {}};
    },
};

}  // namespace refold::hunyuan_dense_family
