#include "engine/ggml/tensor_placement.h"

namespace refold {

ggml_type TensorPlacement::resident_type(const std::string& name) const {
    const Tensor& tensor = model_.tensor(name);
    if (f32_ || f32_tensors_.contains(name)) return GGML_TYPE_F32;
    if (bf16_ && tensor.type == DType::F16) return GGML_TYPE_BF16;
    return static_cast<ggml_type>(tensor.type);
}

void TensorPlacement::place(const std::vector<std::string>& tensors, bool fuse) {
    Storage* open = nullptr;
    for (const auto& name : tensors) {
        if (rows_.contains(name)) continue;
        const Tensor& tensor = model_.tensor(name);
        const ggml_type type = resident_type(name);
        const int64_t fold = f32_ ? 1 : tensor.fold();
        const auto describe = [&](int64_t rows) {
            return ggml_new_tensor_2d(context_, type, tensor.row_elements() * fold, rows / fold);
        };
        if (!fuse || open == nullptr || open->tensor->type != type || open->in() != tensor.row_elements()) {
            storages_.push_back(std::make_unique<Storage>());
            open = storages_.back().get();
            open->tensor = describe(tensor.rows());
            open->fold = fold;
            if (fold > 1) open->layout = Layout::folded;
            rows_[name] = {open, 0, tensor.rows()};
        } else {
            const int64_t first = open->rows();
            rows_[name] = {open, first, tensor.rows()};
            // Not allocated yet: the description can still grow.
            open->tensor = describe(first + tensor.rows());
        }
        open->tensors.push_back(name);
    }
}

}  // namespace refold
