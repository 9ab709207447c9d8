// ALBERT: BERT whose layers share their weights in groups, with embeddings narrower than the residual stream.
// llama.cpp has no such architecture.
#include "core/error.h"
#include "model/families/common/bert.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::albert_family {
namespace {

constexpr const char* kName = "albert";

ModelConfig read_config(const GgufMetadata& metadata) {
    const FamilyKeys keys(metadata, kName);
    ModelConfig c = read_encoder_config(keys);
    c.n_embedding = keys.size("embedding_width");
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    encoder_from_hf(config, kName, metadata);
    FamilyWriter out(metadata, kName);
    out.integer("embedding_width", config.integer("embedding_size"));
    out.integer("block_count", config.integer("num_hidden_groups"));
    if (const int64_t inner = config.integer("inner_group_num"); inner != 1)
        fail(ErrorCode::unsupported, "config.json", "field 'inner_group_num' ({}) is not supported; known: 1",
             inner);
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = encoder_to_hf(model, kName, "Albert");
    out["embedding_size"] = model.config.embedding_width();
    return out;
}

size_t layers_of_group(const HfConfig& config) {
    const int64_t layers = config.integer("num_hidden_layers", 12),
                  groups = config.integer("num_hidden_groups", 1);
    if (groups == 0 || layers % groups != 0)
        fail(ErrorCode::unsupported, "config.json",
             "'num_hidden_layers' ({}) is no multiple of 'num_hidden_groups' ({})", layers, groups);
    return static_cast<size_t>(layers / groups);
}

void write_groups(nlohmann::json& config, size_t stored, size_t repeats) {
    config["num_hidden_groups"] = stored;
    config["num_hidden_layers"] = stored * repeats;
}

#define LAYER "@encoder.albert_layer_groups.{}.albert_layers.0."

std::vector<SlotDescription> layer_slots() {
    const std::map<Slot, const char*> names = {
        {Slot::attn_q, LAYER "attention.query.weight"},
        {Slot::attn_k, LAYER "attention.key.weight"},
        {Slot::attn_v, LAYER "attention.value.weight"},
        {Slot::attn_o, LAYER "attention.dense.weight"},
        {Slot::attn_q_bias, LAYER "attention.query.bias"},
        {Slot::attn_k_bias, LAYER "attention.key.bias"},
        {Slot::attn_v_bias, LAYER "attention.value.bias"},
        {Slot::attn_o_bias, LAYER "attention.dense.bias"},
        {Slot::attn_output_norm, LAYER "attention.LayerNorm.weight"},
        {Slot::attn_output_norm_bias, LAYER "attention.LayerNorm.bias"},
        {Slot::ffn_up, LAYER "ffn.weight"},
        {Slot::ffn_up_bias, LAYER "ffn.bias"},
        {Slot::ffn_down, LAYER "ffn_output.weight"},
        {Slot::ffn_down_bias, LAYER "ffn_output.bias"},
        {Slot::ffn_output_norm, LAYER "full_layer_layer_norm.weight"},
        {Slot::ffn_output_norm_bias, LAYER "full_layer_layer_norm.bias"},
    };
    std::vector<SlotDescription> slots = encoder_layer_slots();
    for (SlotDescription& slot : slots) slot.hf = names.at(slot.slot);
    return slots;
}

#undef LAYER

std::vector<SlotDescription> model_slots() {
    std::vector<SlotDescription> slots = encoder_model_slots({
        .dense = "predictions.dense.weight",
        .dense_bias = "predictions.dense.bias",
        .norm = "predictions.LayerNorm.weight",
        .norm_bias = "predictions.LayerNorm.bias",
        .output = "predictions.decoder.weight",
        .output_bias = "predictions.bias|predictions.decoder.bias",
    });
    for (SlotDescription& slot : slots) {
        if (slot.slot == Slot::pooler) slot.hf = "@pooler.weight";
        if (slot.slot == Slot::pooler_bias) slot.hf = "@pooler.bias";
    }
    slots.push_back({Slot::embd_map, "embd_map.weight", true, "@encoder.embedding_hidden_mapping_in.weight"});
    slots.push_back(
        {Slot::embd_map_bias, "embd_map.bias", true, "@encoder.embedding_hidden_mapping_in.bias"});
    return slots;
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = layer_slots(),
    .model_slots = model_slots(),
    .read_config = read_config,
    .hf_model_types = {kName},
    .hf_prefix = "albert.",
    .hf_repeats = {.of_layer = layers_of_group, .write = write_groups},
    .hf_unread = {{"down_scale_factor", "1"},
                  {"gap_size", "0"},
                  {"net_structure_type", "0"},
                  {"num_memory_blocks", "0"},
                  {"position_embedding_type", "\"absolute\""}},
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = [](const Model& model) -> StockModel { fail_stock(model, "the architecture"); },
};

}  // namespace refold::albert_family
