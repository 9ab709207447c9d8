#include "compress/training/trained_types.h"

#include "compress/method/selection.h"

namespace refold {

TrainedTypes::TrainedTypes(const Model& model, std::string option)
    : model_(model), option_(std::move(option)) {
    const auto add = [&](const Slots& slots) {
        for (const auto& [slot, expression] : slots)
            for (const auto& name : tensors_of(expression))
                if (is_vector(slot) || is_small_factor(expression, name)) float32_.insert(name);
    };
    for (const Slots& slots : model.topology.layers) add(slots);
    add(model.topology.globals);
}

DType TrainedTypes::operator()(const std::string& tensor) const {
    if (float32_.contains(tensor)) return DType::F32;
    if (option_ != "same") return computed_type(option_, model_, {tensor});
    const DType before = model_.tensor(tensor).type;
    return is_float(before) ? before : computed_type("auto", model_, {tensor});
}

}  // namespace refold
