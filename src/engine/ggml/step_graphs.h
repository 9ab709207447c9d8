// Graphs of steps whose shapes change from one to the next.
#pragma once

#include <list>

#include "engine/ggml/graph.h"

namespace refold {

// Building a graph takes some tenths of a millisecond: those of few tokens, whose numbers repeat, are kept,
// and those used longest ago make room. Of larger ones, whose steps take hundreds of milliseconds, there
// is one.
class StepGraphs {
public:
    StepGraphs(const Network& network, const Weights& weights, const KvCache& cache, StepWorkspace& workspace)
        : network_(network), weights_(weights), cache_(cache), workspace_(workspace) {}

    // Prepared for the shape; the others' results are no longer valid.
    StepGraph& of(const StepShape& shape);

private:
    const Network& network_;
    const Weights& weights_;
    const KvCache& cache_;
    StepWorkspace& workspace_;
    std::list<StepGraph> small_, large_;  // the one used last comes first
};

}  // namespace refold
