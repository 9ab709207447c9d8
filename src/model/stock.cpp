#include "model/stock.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/folded.h"
#include "model/quantized.h"
#include "model/row_parts.h"
#include "model/without_sharing.h"

namespace refold {

namespace {

bool same(const GgufMetadata& a, const GgufMetadata& b) {
    return std::ranges::equal(a.entries(), b.entries(), [](const auto& x, const auto& y) {
        return x.first == y.first && x.second.type == y.second.type && x.second.value == y.second.value;
    });
}

// llama.cpp's converters keep routers in float32, because rounded scores would choose other experts.
void set_routers_to_f32(Model& model) {
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        if (!model.topology.has(l, Slot::ffn_router)) continue;
        const std::string& name = std::get<Dense>(model.topology.at(l, Slot::ffn_router)).tensor;
        if (model.tensor(name).type != DType::F32)
            model.tensors[name] = nearest_tensor(model, name, DType::F32);
    }
}

// The families' to_stock() change keys and tensors; the configuration is what a reader makes of them. A model
// that llama.cpp knows under another name keeps its own.
void follow_keys(Model& model) {
    if (model.metadata.string("general.architecture") != model.family->name) return;
    const int64_t n_vocab = model.config.n_vocab;
    model.config = model.family->read_config(model.metadata);
    model.config.n_vocab = n_vocab;
}

}  // namespace

StockModel for_stock(const Model& model) {
    const std::optional<Model> tables = with_whole_tables(model);
    const Model& given = tables ? *tables : model;
    const std::optional<Model> whole = without_folds(given);
    Model dense = without_sharing(whole ? *whole : given);
    set_routers_to_f32(dense);
    StockModel out =
        dense.family->to_stock != nullptr ? dense.family->to_stock(dense) : StockModel{std::move(dense), {}};
    follow_keys(out.model);
    const auto add = [&](const std::string& note) { out.note += (out.note.empty() ? "" : "; ") + note; };
    if (whole)
        add(fmt::format("{} matrices whose rows are no whole blocks become larger types",
                        std::count_if(given.tensors.begin(), given.tensors.end(),
                                      [](const auto& entry) { return entry.second.fold() > 1; })));
    if (tables) add("tables whose rows have several types get the largest of them");
    return out;
}

bool is_stock(const Model& model) {
    const Model stock = for_stock(model).model;
    return same(stock.metadata, model.metadata) &&
           std::ranges::equal(stock.tensors, model.tensors, [](const auto& a, const auto& b) {
               return a.first == b.first && a.second.type == b.second.type &&
                      a.second.shape == b.second.shape;
           });
}

}  // namespace refold
