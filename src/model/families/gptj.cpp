// GPT-J: one LayerNorm per layer feeds attention and FFN, which run in parallel; rotation of neighboring
// pairs on the first dimensions; a bias on the output.
#include "core/error.h"
#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::gptj_family {
namespace {

constexpr const char* kName = "gptj";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::layer, Activation::gelu_tanh);
    c.rope = read_rope(keys, c, RopeKind::interleaved);
    c.parallel_residual = true;
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    write_common(config, kGptFields, NormKind::layer, Activation::gelu_tanh, out);
    out.integer("rope.dimension_count", config.integer("rotary_dim"));
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, kGptFields, "GPTJForCausalLM", "gptj");
    out["rotary_dim"] = model.config.rope.dims;
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
            {Slot::attn_q, "blk.{}.attn_q.weight", true, "@h.{}.attn.q_proj.weight"},
            {Slot::attn_k, "blk.{}.attn_k.weight", true, "@h.{}.attn.k_proj.weight"},
            {Slot::attn_v, "blk.{}.attn_v.weight", true, "@h.{}.attn.v_proj.weight"},
            {Slot::attn_o, "blk.{}.attn_output.weight", true, "@h.{}.attn.out_proj.weight"},
            {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@h.{}.mlp.fc_in.weight"},
            {Slot::ffn_up_bias, "blk.{}.ffn_up.bias", true, "@h.{}.mlp.fc_in.bias"},
            {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@h.{}.mlp.fc_out.weight"},
            {Slot::ffn_down_bias, "blk.{}.ffn_down.bias", true, "@h.{}.mlp.fc_out.bias"},
        },
    .model_slots =
        {
            {Slot::token_embd, "token_embd.weight", true, "@wte.weight"},
            {Slot::output_norm, "output_norm.weight", true, "@ln_f.weight"},
            {Slot::output_norm_bias, "output_norm.bias", true, "@ln_f.bias"},
            {Slot::output, "output.weight", true, "lm_head.weight", hf_plain, "token_embd.weight"},
            {Slot::output_bias, "output.bias", false, "lm_head.bias"},
        },
    .read_config = read_config,
    .hf_model_types = {"gptj"},
    .hf_prefix = "transformer.",
    .hf_unread = {{"n_ctx"},
                  {"rotary", "true"},
                  {"scale_attn_weights", "true"},
                  {"summary_activation"},
                  {"summary_first_dropout"},
                  {"summary_proj_to_labels"},
                  {"summary_type"},
                  {"summary_use_proj"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel { fail_stock(model, "any part (it has no GPT-J)"); },
};

}  // namespace refold::gptj_family
