#include "model/stock.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/folded.h"
#include "model/without_sharing.h"

namespace refold {

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

}  // namespace refold
