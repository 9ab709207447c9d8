#include "model/stock.h"

#include "model/without_sharing.h"

namespace refold {

StockModel for_stock(const Model& model) {
    Model dense = without_sharing(model);
    return dense.family->to_stock != nullptr ? dense.family->to_stock(dense)
                                             : StockModel{std::move(dense), {}};
}

}  // namespace refold
