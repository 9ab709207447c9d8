#include "model/finite.h"

#include <vector>

#include "core/parallel.h"

namespace refold {

TensorBytes finite_bytes(const Tensor& tensor, const std::string& name) {
    return naming_tensor("weights", name, [&] {
        TensorBytes bytes(tensor);
        check_finite(tensor.type, bytes.bytes(), tensor.row_elements());
        return bytes;
    });
}

void check_finite(const Model& model, int threads) {
    if (model.shapes_only) return;
    std::vector<const std::pair<const std::string, Tensor>*> tensors;
    for (const auto& entry : model.tensors) tensors.push_back(&entry);
    parallel_for(static_cast<int64_t>(tensors.size()), threads > 0 ? threads : default_threads(),
                 [&](int64_t i) {
                     const auto& [name, tensor] = *tensors[static_cast<size_t>(i)];
                     finite_bytes(tensor, name);
                     if (model.source) model.source->release(tensor.mapped);
                 });
}

}  // namespace refold
