// Ouro (LoopLM): all layers run several times, with the final norm after every loop; norms before and after
// each module; a gate that says after which loop a token exits. llama.cpp has no such architecture.
#include <algorithm>

#include "core/error.h"
#include "model/families/common/llama.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::ouro_family {
namespace {

constexpr const char* kName = "ouro";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_common(keys, NormKind::rms, Activation::silu);
    c.rope = read_rope(keys, c, RopeKind::halves);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    if (config.boolean("use_sliding_window", false))
        fail(ErrorCode::unsupported, "config.json", "field 'use_sliding_window' is not supported for Ouro");
    FamilyWriter out(metadata, kName);
    write_common(config, {}, NormKind::rms, Activation::silu, out);
    write_rope(config, out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = hf_common(model, {}, "OuroForCausalLM", kName);
    hf_rope(model, out);
    return out;
}

std::vector<SlotDescription> layer_slots() {
    std::vector<SlotDescription> slots = without_biases(llama_layer_slots(hf_plain));
    std::ranges::copy(
        post_norms("@layers.{}.input_layernorm_2.weight", "@layers.{}.post_attention_layernorm_2.weight"),
        std::back_inserter(slots));
    slots.push_back({Slot::ffn_output_norm, "blk.{}.loop_norm.weight", false, "@norm.weight"});
    return slots;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = layer_slots(),
    .model_slots = {{Slot::token_embd, "token_embd.weight", true, "@embed_tokens.weight"},
                    {Slot::output, "output.weight", true, "lm_head.weight", hf_plain, "token_embd.weight"},
                    {Slot::exit_gate, "exit_gate.weight", false, "@early_exit_gate.weight"},
                    {Slot::exit_gate_bias, "exit_gate.bias", false, "@early_exit_gate.bias"},
                    {Slot::rope_freqs, "rope_freqs.weight", false, nullptr}},
    .read_config = read_config,
    .hf_model_types = {kName},
    .hf_prefix = "model.",
    .hf_repeats = {.loops = "total_ut_steps"},
    .hf_unread = {{"early_exit_threshold"}, {"max_window_layers"}, {"sliding_window"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .hf_norm_of_loop = true,
    .to_stock = [](const Model& model) -> StockModel { fail_stock(model, "the architecture"); },
};

}  // namespace refold::ouro_family
