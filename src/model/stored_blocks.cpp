#include "model/stored_blocks.h"

namespace refold {

std::vector<StoredBlock> stored_blocks(const Model& model, const Expression& expression, Slot slot) {
    std::vector<StoredBlock> blocks;
    if (const auto* dense = std::get_if<Dense>(&expression)) {
        const Tensor& tensor = model.tensor(dense->tensor);
        blocks.push_back({&tensor, 0, tensor.rows(), 0, tensor.row_elements()});
        return blocks;
    }
    const int64_t size = block_size(slot, model.config);
    for (const auto& run : std::get<Heads>(expression).runs) {
        const Tensor& tensor = model.tensor(run.tensor);
        if (heads_are_columns(slot)) {
            blocks.push_back({&tensor, 0, tensor.rows(), run.first * size, run.count * size});
        } else {
            blocks.push_back({&tensor, run.first * size, run.count * size, 0, tensor.row_elements()});
        }
    }
    return blocks;
}

}  // namespace refold
