// Graphs of steps whose shapes vary from step to step.
#pragma once

#include <list>

#include "engine/ggml/graph.h"

namespace refold {

// Building a graph takes some tenths of a millisecond. Graphs of few tokens, whose shapes recur, are kept,
// and the least recently used one is replaced. Of graphs of more tokens, whose steps take hundreds of
// milliseconds, only the last one is kept.
class StepGraphs {
public:
    StepGraphs(const Network& network, const Weights& weights, const KvCache& cache, StepWorkspace& workspace)
        : network_(network), weights_(weights), cache_(cache), workspace_(workspace) {}

    // A graph prepared for the shape. Invalidates the results of the others.
    StepGraph& of(const StepShape& shape);
    // Of activations that are no other graph's.
    uint64_t bytes() const {
        uint64_t out = 0;
        for (const auto* graphs : {&small_, &large_})
            for (const StepGraph& graph : *graphs) out += graph.bytes();
        return out;
    }
    // For graphs of another set of operations.
    void clear() {
        small_.clear();
        large_.clear();
    }

private:
    const Network& network_;
    const Weights& weights_;
    const KvCache& cache_;
    StepWorkspace& workspace_;
    std::list<StepGraph> small_, large_;  // most recently used first
};

}  // namespace refold
