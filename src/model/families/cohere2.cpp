// Cohere 2 (Command R7B, Command A): see common/cohere.h; layers with a window rotate queries and keys, the
// others, which see all tokens, do not (NoPE).
#include "core/error.h"
#include "model/families/common/cohere.h"
#include "model/families/common/llama.h"

namespace refold::cohere2_family {
namespace {

constexpr const char* kName = "cohere2";
constexpr int64_t kPeriod = 4;  // every fourth layer sees all

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_cohere_config(keys);
    c.windows = read_windows(keys, kPeriod);
    std::vector<bool> rotated(static_cast<size_t>(keys.size("block_count")));
    for (size_t l = 0; l < rotated.size(); ++l) rotated[l] = c.window(l) > 0;
    c.rotated = std::move(rotated);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    FamilyWriter out(metadata, kName);
    cohere_from_hf(config, out);
    const auto period = static_cast<size_t>(config.integer("sliding_window_pattern"));
    if (period == 0) fail(ErrorCode::input, "config.json", "field 'sliding_window_pattern' must not be 0");
    write_windows(config.integer("sliding_window"),
                  layers_with_window(config, [&](size_t l) { return (l + 1) % period != 0; }), out);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = cohere_to_hf(model, "Cohere2ForCausalLM", kName);
    windows_to_hf(model, out);
    return out;
}

StockModel to_stock(const Model& model) {
    check_cohere_stock(model);
    return {model, {}};
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = cohere_layer_slots(),
    .model_slots = llama_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"cohere2"},
    .hf_prefix = "model.",
    .hf_unread = {{"_sliding_window_pattern"},  // layer_types says it
                  {"layer_switch", "4"},
                  {"order_of_interleaved_layers", "\"local_attn_first\""},
                  {"position_embedding_type", "\"rope_gptj\""},
                  {"rotary_pct", "1.0"},
                  {"use_embedding_sharing", "true"},
                  {"use_gated_activation", "true"},
                  {"use_parallel_block", "true"},
                  {"use_parallel_embedding"},
                  {"use_qk_norm", "false"}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = to_stock,
};

}  // namespace refold::cohere2_family
