#include "engine/ggml/tensor_placement.h"

namespace refold {

void TensorPlacement::place(const std::vector<std::string>& tensors, bool fuse) {
    Storage* open = nullptr;
    for (const auto& name : tensors) {
        if (rows_.contains(name)) continue;
        const Tensor& tensor = model_.tensor(name);
        const auto type = f32_ ? GGML_TYPE_F32 : static_cast<ggml_type>(tensor.type);
        if (!fuse || open == nullptr || open->tensor->type != type || open->in() != tensor.row_elements()) {
            storages_.push_back(std::make_unique<Storage>());
            open = storages_.back().get();
            open->tensor = ggml_new_tensor_2d(context_, type, tensor.row_elements(), tensor.rows());
            rows_[name] = {open, 0, tensor.rows()};
        } else {
            rows_[name] = {open, open->rows(), tensor.rows()};
            // Not allocated yet: the description can still grow.
            open->tensor = ggml_new_tensor_2d(context_, type, open->in(), open->rows() + tensor.rows());
        }
        open->tensors.push_back(name);
    }
}

}  // namespace refold
