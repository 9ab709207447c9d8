#include "engine/ggml/step_graphs.h"

#include <algorithm>

namespace refold {

StepGraph& StepGraphs::of(const StepShape& shape) {
    constexpr int64_t kSmall = 64;  // tokens
    constexpr size_t kGraphs = 16;
    auto& graphs = shape.tokens <= kSmall ? small_ : large_;
    const size_t most = shape.tokens <= kSmall ? kGraphs : 1;
    auto found = std::find_if(graphs.begin(), graphs.end(),
                              [&](const StepGraph& graph) { return graph.shape() == shape; });
    if (found == graphs.end()) {
        if (graphs.size() < most) graphs.emplace_back(network_, workspace_);
        found = std::prev(graphs.end());
    }
    graphs.splice(graphs.begin(), graphs, found);
    graphs.front().prepare(weights_, cache_, shape);
    return graphs.front();
}

}  // namespace refold
