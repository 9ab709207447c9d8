// Baichuan 2: Baichuan whose output divides by the norms of its rows ("NormHead").
#include <cstring>

#include "model/families/common/baichuan.h"
#include "model/families/common/stock.h"
#include "model/materialize.h"
#include "model/stock.h"

namespace refold::baichuan2_family {
namespace {

ModelConfig read_config(const GgufMetadata& metadata) {
    ModelConfig c = read_baichuan_config(FamilyKeys(metadata, kBaichuan2));
    c.norm_head = true;
    return c;
}

// The norms go into the output's rows, in a float type.
StockModel to_stock(const Model& model) {
    check_baichuan_stock(model);
    Model out = model;
    out.family = &find_family(kBaichuan);
    out.config.family = kBaichuan;
    out.config.norm_head = false;
    out.metadata = renamed_metadata(model.metadata, kBaichuan2, kBaichuan);
    const std::string name = tensor_name(*model.family, Slot::output, 0);
    const Tensor source = model.tensor(std::get<Dense>(model.topology.globals.at(Slot::output)).tensor);
    const DType type = is_float(source.type) ? source.type : DType::F16;
    out.tensors[name] = {type, source.shape, {}, [type, source, files = model.source] {
                             const std::vector<float> scales = inverse_row_norms(source);
                             const int64_t width = source.row_elements();
                             const TensorBytes bytes(source);
                             const size_t from = row_bytes(source.type, width), to = row_bytes(type, width);
                             std::vector<std::byte> packed(to * scales.size());
                             std::vector<float> row(static_cast<size_t>(width));
                             for (size_t r = 0; r < scales.size(); ++r) {
                                 dequantize(source.type, bytes.bytes().subspan(r * from, from), row);
                                 for (float& x : row) x *= scales[r];
                                 const auto done = quantize(type, row, width);
                                 memcpy(packed.data() + r * to, done.data(), to);
                             }
                             return packed;
                         }};
    out.topology.globals[Slot::output] = Dense{name};
    return {out, "the output's rows are divided by their norms"};
}

}  // namespace

extern const Family family;
const Family family = {
    .name = kBaichuan2,
    .layer_slots = baichuan_layer_slots(),
    .model_slots = baichuan_model_slots(),
    .read_config = read_config,
    .hf_model_types = {},  // Baichuan's, whose reader tells the versions apart
    .hf_prefix = "model.",
    .read_hf_config = baichuan_from_hf,
    .write_hf_config = baichuan_to_hf,
    .to_stock = to_stock,
};

}  // namespace refold::baichuan2_family
