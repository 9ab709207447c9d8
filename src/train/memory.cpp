#include "train/memory.h"

#include <algorithm>
#include <set>

#include "train/trained.h"

namespace refold {

TrainSizes train_sizes(const Model& model, const std::string& selection) {
    const auto trained = trained_tensors(model, selection);
    std::set<std::string> names;
    const auto add = [&](const Slots& slots) {
        for (const auto& [slot, expression] : slots) {
            if (properties(slot).kind == SlotKind::rope_factors) continue;
            for (const std::string& name : tensors_of(expression)) names.insert(name);
        }
    };
    for (const Slots& slots : model.topology.layers) add(slots);
    add(model.topology.globals);
    TrainSizes sizes;
    for (const std::string& name : names) {
        const Tensor& tensor = model.tensor(name);
        const auto numbers = static_cast<uint64_t>(tensor.elements());
        const bool vector = tensor.shape.size() < 2;
        if (trained.contains(name)) {
            (vector ? sizes.trained_vectors : sizes.trained_matrices) += numbers;
            sizes.largest = std::max(sizes.largest, numbers);
        } else {
            (vector ? sizes.frozen_vectors : sizes.frozen_matrices) += numbers;
        }
    }
    return sizes;
}

TrainMemory expected_memory(const TrainSizes& sizes, const TrainOptions& options, int processes) {
    const bool rounded = options.weights == TrainType::bf16;
    const uint64_t matrix = rounded ? 2 : 4, n = static_cast<uint64_t>(processes);
    const uint64_t share = (sizes.trained() + n - 1) / n;
    const auto bucket = static_cast<uint64_t>(kGradientBucketBytes);
    const uint64_t buffer = std::min(std::max(bucket, 4 * sizes.largest), 4 * sizes.trained());
    TrainMemory out;
    out.weights = (sizes.trained_matrices + sizes.frozen_matrices) * matrix +
                  (sizes.trained_vectors + sizes.frozen_vectors) * 4;
    const bool keeps_best = options.keep_best || options.patience > 0;
    out.optimizer = share * 4 * (2 + (rounded ? 1U : 0U) + (keeps_best ? 1U : 0U));
    if (options.shares_gradients()) {
        // Leaves' gradients that wait for their bucket, buckets on their way, and the one that is filled.
        const uint64_t waiting = 2 * bucket + sizes.largest * matrix,
                       sent = std::max(2 * bucket, buffer) + buffer;
        const uint64_t whole = sizes.trained_matrices * matrix + sizes.trained_vectors * 4;
        out.gradients = 4 * share + std::min(waiting + sent, whole + 4 * sizes.trained());
    } else {
        out.gradients = 4 * sizes.trained() + (processes > 1 ? buffer : 0);
    }
    return out;
}

}  // namespace refold
