#include "model/stored_blocks.h"

namespace refold {

std::vector<StoredBlock> stored_blocks(const Model& model, const Expression& expression, Slot slot) {
    std::vector<StoredBlock> blocks;
    if (const auto* dense = std::get_if<Dense>(&expression)) {
        const Tensor& tensor = model.tensor(dense->tensor);
        blocks.push_back({&tensor, 0, tensor.rows(), 0, tensor.row_elements()});
        return blocks;
    }
    const int64_t head_dim = model.config.head_dim;
    for (const auto& run : std::get<Heads>(expression).runs) {
        const Tensor& tensor = model.tensor(run.tensor);
        if (heads_are_columns(slot)) {
            blocks.push_back({&tensor, 0, tensor.rows(), run.first * head_dim, run.count * head_dim});
        } else {
            blocks.push_back({&tensor, run.first * head_dim, run.count * head_dim, 0, tensor.row_elements()});
        }
    }
    return blocks;
}

}  // namespace refold
