#include "model/stock.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/folded.h"
#include "model/without_sharing.h"

namespace refold {

namespace {

bool same(const GgufMetadata& a, const GgufMetadata& b) {
    return std::ranges::equal(a.entries(), b.entries(), [](const auto& x, const auto& y) {
        return x.first == y.first && x.second.type == y.second.type && x.second.value == y.second.value;
    });
}

}  // namespace

StockModel for_stock(const Model& model) {
    const std::optional<Model> whole = without_folds(model);
    Model dense = without_sharing(whole.value_or(model));
    StockModel out =
        dense.family->to_stock != nullptr ? dense.family->to_stock(dense) : StockModel{std::move(dense), {}};
    if (whole) {
        out.note += fmt::format("{}{} matrices whose rows are no whole blocks become larger types",
                                out.note.empty() ? "" : "; ",
                                std::count_if(model.tensors.begin(), model.tensors.end(),
                                              [](const auto& entry) { return entry.second.fold() > 1; }));
    }
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
