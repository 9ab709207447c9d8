// BERT.
#include "model/families/common/bert.h"

#include "model/stock.h"

namespace refold::bert_family {
namespace {

ModelConfig read_config(const GgufMetadata& metadata) {
    return read_encoder_config(FamilyKeys(metadata, kBert));
}

void read_hf_config(const HfConfig& config, GgufMetadata& metadata) {
    encoder_from_hf(config, kBert, metadata);
}

nlohmann::json write_hf_config(const Model& model) { return encoder_to_hf(model, kBert, "Bert"); }

StockModel to_stock(const Model& model) { return {without_heads(model), kEncoderNote}; }

}  // namespace

extern const Family family;
const Family family = {
    .name = kBert,
    .layer_slots = encoder_layer_slots(),
    .model_slots = encoder_model_slots({
        .dense = "cls.predictions.transform.dense.weight",
        .dense_bias = "cls.predictions.transform.dense.bias",
        .norm = "cls.predictions.transform.LayerNorm.weight",
        .norm_bias = "cls.predictions.transform.LayerNorm.bias",
        .output = "cls.predictions.decoder.weight",
        .output_bias = "cls.predictions.bias|cls.predictions.decoder.bias",
    }),
    .read_config = read_config,
    .hf_model_types = {"bert"},
    .hf_prefix = "bert.",
    .hf_unread = encoder_unread(),
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .to_stock = to_stock,
};

}  // namespace refold::bert_family
