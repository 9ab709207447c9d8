// Memory for planned weights: layouts, buffers, and filling them from a model's tensors.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/ggml/resident_weights.h"
#include "engine/ggml/weight_plans.h"

namespace refold {

class DeviceRun;

struct WeightMemory {
    std::shared_ptr<ResidentWeights> resident = std::make_shared<ResidentWeights>();
    uint64_t bytes = 0;         // of storages and vectors
    uint64_t shared_bytes = 0;  // of storages that EngineOptions::resident holds; not among `bytes`
};

// Chooses a layout for every storage, the fastest one that all plans can read, and gives memory to storages
// and vectors. Then reads the tensors, converts them to F32 where options.f32 asks for it, packs them into
// their layouts, and releases their mapped files. Leaves planned.vectors empty. Throws Error(io) when there
// is not enough memory. With a device, all of that is in its memory, in layouts that ggml's operations read;
// but for matrices of types that it cannot multiply by, which lie in the CPU's. Tables have their rows in the
// CPU's memory as well. On the CPU, storages that options.resident holds are read there.
WeightMemory load_weights(const Model& model, PlannedWeights& planned, const EngineOptions& options,
                          const DeviceRun* device = nullptr);

}  // namespace refold
