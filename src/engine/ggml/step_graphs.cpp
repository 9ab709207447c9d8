#include "engine/ggml/step_graphs.h"

#include <algorithm>

namespace refold {

StepGraph& StepGraphs::of(const StepShape& shape) {
    constexpr size_t kGraphs = 16;
    auto found = std::find_if(graphs_.begin(), graphs_.end(),
                              [&](const StepGraph& graph) { return graph.shape() == shape; });
    if (found == graphs_.end()) {
        if (graphs_.size() < kGraphs) graphs_.emplace_back(network_, workspace_);
        found = std::prev(graphs_.end());
    }
    graphs_.splice(graphs_.begin(), graphs_, found);
    graphs_.front().prepare(weights_, cache_, shape);
    return graphs_.front();
}

}  // namespace refold
