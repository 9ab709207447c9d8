// GPT-2: LayerNorm before each module, learned positions, biases everywhere, tanh GELU; the checkpoint stores
// its matrices as [in, out] and Q, K, V as one.
#include "core/error.h"
#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::gpt2_family {
namespace {

constexpr const char* kName = "gpt2";
constexpr unsigned kQkv = hf_transposed | hf_stacked;
ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::layer, Activation::gelu_tanh);
    c.n_learned_positions = c.context_length;
    c.scale_by_layer = keys.boolean("attention.scale_by_layer", false);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, kGptFields, NormKind::layer, Activation::gelu_tanh, out);
    if (!config.boolean("scale_attn_weights", true)) out.real("attention.scale", 1.0);
    if (config.boolean("scale_attn_by_inverse_layer_idx", false))
        out.boolean("attention.scale_by_layer", true);
    if (config.boolean("add_cross_attention", false))
        fail(ErrorCode::unsupported, "config.json", "field 'add_cross_attention' is not supported");
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, kGptFields, "GPT2LMHeadModel", "gpt2");
    if (model.config.attention_scale == 1.0F) out["scale_attn_weights"] = false;
    if (model.config.scale_by_layer) out["scale_attn_by_inverse_layer_idx"] = true;
    return out;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots =
        {
            {Slot::attn_norm, "blk.{}.attn_norm.weight", true, "@h.{}.ln_1.weight"},
            {Slot::attn_norm_bias, "blk.{}.attn_norm.bias", true, "@h.{}.ln_1.bias"},
            {Slot::attn_q, "blk.{}.attn_q.weight", true, "@h.{}.attn.c_attn.weight", kQkv},
            {Slot::attn_k, "blk.{}.attn_k.weight", true, "@h.{}.attn.c_attn.weight", kQkv},
            {Slot::attn_v, "blk.{}.attn_v.weight", true, "@h.{}.attn.c_attn.weight", kQkv},
            {Slot::attn_o, "blk.{}.attn_output.weight", true, "@h.{}.attn.c_proj.weight", hf_transposed},
            {Slot::attn_q_bias, "blk.{}.attn_q.bias", true, "@h.{}.attn.c_attn.bias", hf_stacked},
            {Slot::attn_k_bias, "blk.{}.attn_k.bias", true, "@h.{}.attn.c_attn.bias", hf_stacked},
            {Slot::attn_v_bias, "blk.{}.attn_v.bias", true, "@h.{}.attn.c_attn.bias", hf_stacked},
            {Slot::attn_o_bias, "blk.{}.attn_output.bias", true, "@h.{}.attn.c_proj.bias"},
            {Slot::ffn_norm, "blk.{}.ffn_norm.weight", true, "@h.{}.ln_2.weight"},
            {Slot::ffn_norm_bias, "blk.{}.ffn_norm.bias", true, "@h.{}.ln_2.bias"},
            {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@h.{}.mlp.c_fc.weight", hf_transposed},
            {Slot::ffn_up_bias, "blk.{}.ffn_up.bias", true, "@h.{}.mlp.c_fc.bias"},
            {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@h.{}.mlp.c_proj.weight", hf_transposed},
            {Slot::ffn_down_bias, "blk.{}.ffn_down.bias", true, "@h.{}.mlp.c_proj.bias"},
        },
    .model_slots =
        {
            {Slot::token_embd, "token_embd.weight", true, "@wte.weight"},
            {Slot::position_embd, "position_embd.weight", true, "@wpe.weight"},
            {Slot::output_norm, "output_norm.weight", true, "@ln_f.weight"},
            {Slot::output_norm_bias, "output_norm.bias", true, "@ln_f.bias"},
            {Slot::output, "output.weight", true, "lm_head.weight", hf_plain, "token_embd.weight"},
        },
    .read_config = read_config,
    .hf_model_types = {"gpt2"},
    .hf_prefix = "transformer.",
    .hf_unread = {{"n_ctx"},
                  {"reorder_and_upcast_attn"},
                  {"summary_activation"},
                  {"summary_first_dropout"},
                  {"summary_proj_to_labels"},
                  {"summary_type"},
                  {"summary_use_proj"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .fused = {kFusedQkv},
    .to_stock = [](const Model& model) -> StockModel {
        if (model.config.scale_by_layer) fail_stock(model, "the scale of attention by layer");
        if (model.metadata.has("gpt2.attention.scale")) fail_stock(model, "unscaled attention");
        return {model, {}};
    },
};

}  // namespace refold::gpt2_family
