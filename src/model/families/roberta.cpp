// RoBERTa and XLM-RoBERTa, the same network with another tokenizer: BERT whose positions begin after the
// padding token's.
#include "core/error.h"
#include "model/families/common/bert.h"
#include "model/families/common/stock.h"
#include "model/stock.h"

namespace refold::roberta_family {
namespace {

constexpr const char* kName = "roberta";  // ours: llama.cpp stores it as "bert", without its first positions
constexpr const char* kPaddingKey = "roberta.padding_token_id";

ModelConfig read_config(const GgufMetadata& metadata) {
    ModelConfig c = read_encoder_config(FamilyKeys(metadata, kName));
    c.padding_token = static_cast<int32_t>(metadata.integer(kPaddingKey));
    if (*c.padding_token < 0 || *c.padding_token + 1 >= c.n_learned_positions)
        fail(ErrorCode::input, kName, "key '{}' is out of range: {}", kPaddingKey, *c.padding_token);
    return c;
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    encoder_from_hf(config, kName, metadata);
    metadata.set(kPaddingKey, GgufValue::u32(static_cast<uint32_t>(config.integer("pad_token_id", 1))));
}

nlohmann::json write_hf_config(const Model& model) {
    nlohmann::json out = encoder_to_hf(model, kName, "Roberta");
    out["pad_token_id"] = *model.config.padding_token;
    return out;
}

std::vector<SlotDescription> model_slots() {
    std::vector<SlotDescription> slots = encoder_model_slots({
        .dense = "lm_head.dense.weight",
        .dense_bias = "lm_head.dense.bias",
        .norm = "lm_head.layer_norm.weight",
        .norm_bias = "lm_head.layer_norm.bias",
        .output = "lm_head.decoder.weight",
        .output_bias = "lm_head.bias|lm_head.decoder.bias",
    });
    // The classification head begins with a pooler of its own.
    const std::map<Slot, const char*> names = {
        {Slot::pooler, "@pooler.dense.weight|classifier.dense.weight"},
        {Slot::pooler_bias, "@pooler.dense.bias|classifier.dense.bias"},
        {Slot::score, "classifier.out_proj.weight"},
        {Slot::score_bias, "classifier.out_proj.bias"},
    };
    for (SlotDescription& slot : slots)
        if (const auto found = names.find(slot.slot); found != names.end()) slot.hf = found->second;
    return slots;
}

StockModel to_stock(const Model& model) {
    Model out = without_heads(model);
    out.family = &find_family(kBert);
    out.config.family = kBert;
    const int64_t skipped = *model.config.padding_token + 1;
    out.config.padding_token.reset();
    out.config.n_learned_positions -= skipped;
    out.config.context_length = out.config.n_learned_positions;
    out.metadata = renamed_metadata(model.metadata, kName, kBert);
    out.metadata.erase("bert.padding_token_id");
    FamilyWriter(out.metadata, kBert).integer("context_length", out.config.context_length);
    Tensor& positions = out.tensors.at(tensor_name(*model.family, Slot::position_embd, 0));
    const size_t bytes = row_bytes(positions.type, positions.row_elements()) * static_cast<size_t>(skipped);
    positions.shape[1] -= skipped;
    if (positions.produce) {
        positions.produce = [all = positions.produce, bytes] {
            auto data = all();
            return std::vector(data.begin() + static_cast<ptrdiff_t>(bytes), data.end());
        };
    } else {
        positions.mapped = positions.mapped.subspan(bytes);
    }
    return {out, kEncoderNote};
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kName,
    .layer_slots = encoder_layer_slots(),
    .model_slots = model_slots(),
    .read_config = read_config,
    .hf_model_types = {"roberta", "xlm-roberta"},
    .hf_prefix = "roberta.",
    .hf_unread = encoder_unread(),
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = to_stock,
};

}  // namespace refold::roberta_family
