// Which layers of a model lie on which of several devices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/devices.h"
#include "engine/engine.h"

namespace refold {

// What layers need, in bytes.
struct LayerNeeds {
    // Of the matrices that no earlier layer reads, and of the KV cache.
    std::vector<uint64_t> weights, cache;
    // The earlier layer that has more of this layer's matrices than the layer itself: that of the loop
    // before, say. They lie together, so that no matrix is read from another device.
    std::vector<std::optional<size_t>> with;
    uint64_t output = 0;  // of the whole model's matrices

    // Layers that lie with no other.
    int64_t stored_layers() const;
};
// The options are complete (checked_options.h); the model is one that an engine runs. Of a block that is run
// loop by loop, the cache has rows for each of the loops.
LayerNeeds layer_needs(const Model& model, const EngineOptions& options, int64_t loops = 1);

struct DeviceSplit {
    std::vector<size_t> layers;  // the device of each layer: an index of `devices`, or their number: the CPU
    size_t output = 0;           // and of the output
    std::vector<uint64_t> needed;  // bytes by device
};
// The last `gpu_layers` stored layers go to the devices, in their order: as many to each as its free memory
// is in proportion to the others' (equal where some is not known).
DeviceSplit split_layers(const LayerNeeds& needs, std::span<const Device> devices, int64_t gpu_layers);

// Throws Error(io) where a device other than the CPU has less free memory than it needs: how much that is,
// and which --gpu-layers fits.
void check_room(const LayerNeeds& needs, const DeviceSplit& split, std::span<const Device> devices);

}  // namespace refold
