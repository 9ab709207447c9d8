#include "compress/training/trained_tensors.h"

#include <memory>

#include "compress/method/lazy.h"
#include "train/trained.h"

namespace refold {

TrainedTensors::TrainedTensors(const Model& model, const std::string& selection, const std::string& type)
    : model_(model), names_(trained_tensors(model, selection)), type_of_(model, type) {}

uint64_t TrainedTensors::parameters() const {
    uint64_t sum = 0;
    for (const auto& name : names_) sum += static_cast<uint64_t>(model_.tensor(name).elements());
    return sum;
}

std::vector<std::string> TrainedTensors::widened() const {
    std::vector<std::string> out;
    for (const auto& name : names_)
        if (!is_float(model_.tensor(name).type)) out.push_back(name);
    return out;
}

Model TrainedTensors::with(TensorValues values) const {
    Model out = model_;
    for (const auto& name : names_) {
        const Tensor& before = model_.tensor(name);
        const DType type = type_of_(name);
        const auto found = values.find(name);
        if (found == values.end()) {
            if (type != before.type) out.tensors[name] = lazy::constant(type, before.shape, 0);
            continue;
        }
        auto shared = std::make_shared<const std::vector<float>>(std::move(found->second));
        out.tensors[name] = lazy::computed(type, before.shape, [shared] { return *shared; });
    }
    return out;
}

}  // namespace refold
