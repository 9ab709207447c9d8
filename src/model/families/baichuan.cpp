// Baichuan 1.
#include "model/families/common/baichuan.h"

#include "model/stock.h"

namespace refold::baichuan_family {
namespace {

ModelConfig read_config(const GgufMetadata& metadata) {
    return read_baichuan_config(FamilyKeys(metadata, kBaichuan));
}

StockModel to_stock(const Model& model) {
    check_baichuan_stock(model);
    return {model, {}};
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kBaichuan,
    .layer_slots = baichuan_layer_slots(),
    .model_slots = baichuan_model_slots(),
    .read_config = read_config,
    .hf_model_types = {"baichuan"},
    .hf_prefix = "model.",
    .read_hf_config = baichuan_from_hf,
    .write_hf_config = baichuan_to_hf,
    .to_stock = to_stock,
};

}  // namespace refold::baichuan_family
