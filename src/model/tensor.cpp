#include "model/tensor.h"

namespace refold {

int64_t Tensor::rows() const {
    int64_t rows = 1;
    for (size_t d = 1; d < shape.size(); ++d) rows *= shape[d];
    return rows;
}

TensorBytes::TensorBytes(const Tensor& tensor) {
    if (tensor.produce) {
        owned_ = tensor.produce();
        view_ = owned_;
    } else {
        view_ = tensor.mapped;
    }
}

void SourceFiles::release(std::span<const std::byte> view) const {
    for (const auto& file : files_) {
        const auto all = file->bytes();
        if (view.data() >= all.data() && view.data() < all.data() + all.size()) file->release(view);
    }
}

}  // namespace refold
