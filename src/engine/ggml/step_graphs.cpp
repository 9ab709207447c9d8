#include "engine/ggml/step_graphs.h"

#include <algorithm>

namespace refold {
namespace {

constexpr int64_t kSmall = 64;  // tokens
constexpr size_t kGraphs = 16;
constexpr uint64_t kBytes = 64ULL << 20;  // of small graphs together

uint64_t bytes_of(const std::list<StepGraph>& graphs) {
    uint64_t bytes = 0;
    for (const StepGraph& graph : graphs) bytes += graph.compute_bytes();
    return bytes;
}

}  // namespace

StepGraph& StepGraphs::of(const StepShape& shape) {
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
    // A graph that is used again keeps the memory of its largest shape.
    while (graphs.size() > 1 && bytes_of(graphs) > kBytes) graphs.pop_back();
    return graphs.front();
}

uint64_t StepGraphs::compute_bytes() const { return bytes_of(small_) + bytes_of(large_); }

}  // namespace refold
