// Memory for planned weights: layouts, buffers, and filling them from a model's tensors.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "engine/ggml/weight_plans.h"

namespace refold {

struct WeightMemory {
    std::vector<ggml_backend_buffer_ptr> buffers;
    uint64_t bytes = 0;          // of storages and vectors
    uint64_t scratch_bytes = 0;  // of LinearPlan::scratch, in the same buffers
};

// Chooses a layout for every storage, the fastest one that all plans can read, and gives memory to storages,
// vectors and the scratch of plans. Then reads the tensors, converts them to F32 where options.f32 asks for
// it, packs them into their layouts, and releases their mapped files. Plans of runs whose layouts differ
// become `composed`. Leaves planned.vectors empty. Throws Error(io) when there is not enough memory.
WeightMemory load_weights(const Model& model, PlannedWeights& planned, const EngineOptions& options);

}  // namespace refold
