#include "engine/ggml/step_graphs.h"

#include <algorithm>

#include "core/error.h"

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
    StepGraph& graph = graphs.front();
    try {
        graph.prepare(weights_, cache_, shape);
    } catch (const Error& error) {
        // On a device each graph has memory of its own, which shapes of later steps may need.
        if (error.code() != ErrorCode::io || small_.size() + large_.size() == 1) throw;
        const auto is_other = [&](const StepGraph& other) { return &other != &graph; };
        small_.remove_if(is_other);
        large_.remove_if(is_other);
        graph.prepare(weights_, cache_, shape);
    }
    return graph;
}

}  // namespace refold
