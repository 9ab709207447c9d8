// Graphs of ggml's own operations on devices. What a device cannot do, ggml's scheduler runs on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/device_split.h"
#include "engine/devices.h"
#include "engine/engine.h"
#include "engine/ggml/handles.h"
#include "engine/ggml/sequence_groups.h"

namespace refold {

// Where weights, caches and activations of an engine lie, and what runs its graphs.
class DeviceRun {
public:
    // `model` is the one that the engine runs, perhaps a block of several loops; `options` are complete.
    // Throws as find_devices() and check_room() do, and Error(unsupported) when a device cannot be used.
    DeviceRun(const Model& model, const EngineOptions& options, int64_t loops);
    DeviceRun(const DeviceRun&) = delete;
    DeviceRun& operator=(const DeviceRun&) = delete;

    // As --device names them.
    const std::string& name() const { return name_; }
    // Of a layer's matrices and KV cache; kWholeModel: of the output.
    ggml_backend_buffer_type_t memory(size_t layer) const { return memory_[backend_of(layer)]; }
    // Whether some layers are on a worker.
    bool has_worker() const { return std::ranges::count(remote_, true) > 0; }
    // Whether some layers are on this machine's CPU, or on a worker that may be one.
    bool has_cpu() const { return has_cpu_; }
    // Whether the layer's device multiplies by matrices [in, out] of this type; else they lie in the CPU's
    // memory.
    bool multiplies(size_t layer, ggml_type type, int64_t in, int64_t out) const;
    bool supports(size_t layer, const ggml_tensor* operation) const;
    // `row_bytes`: keys and values of a token in one layer.
    AttentionCosts attention_costs(uint64_t row_bytes) const;

    // The memory of a graph. Each has its own, so that graphs of several shapes take turns without being
    // placed again. With workers all share one: ggml would use memory that a lost worker could not give.
    struct Place {
        ggml_backend_sched_ptr scheduler = {};
        size_t nodes = 0;  // that it has room for
    };
    // Gives the graph memory, so that its inputs can be written: they lie in the CPU's memory. Returns false
    // when there is not enough.
    bool put(ggml_cgraph* graph, Place& place);
    // How often put() took the memory of all graphs.
    uint64_t places() const { return places_; }
    // Throws LostDevice when a device fails, as a lost worker does.
    void compute(ggml_cgraph* graph, const Place& place) const;
    // Throws LostDevice when a worker is lost.
    void check_workers() const;
    // Of activations.
    uint64_t bytes(const Place& place) const;

private:
    void say_what_it_lacks(ggml_cgraph* graph, const Place& place) const;
    size_t backend_of(size_t layer) const { return layer < layers_.size() ? layers_[layer] : output_; }

    std::string name_;
    std::vector<ggml_backend_ptr> backends_;          // the CPU's last
    std::vector<std::string> names_;                  // by backend
    std::vector<bool> remote_;                        // by backend
    std::vector<ggml_backend_buffer_type_t> memory_;  // by backend
    std::vector<size_t> layers_;                      // the backend of each layer
    size_t output_ = 0;
    bool has_cpu_ = false;
    Place shared_ = {};  // with workers
    uint64_t places_ = 0;
};

// The model as an engine with these options stores it: on devices, a product with columns of several matrices
// would be as many products, none of which fills a GPU.
Model as_placed(const Model& model, const EngineOptions& options);

// For an engine with these options; null for the CPU by refold's own kernels.
std::unique_ptr<DeviceRun> make_device_run(const Model& model, const EngineOptions& options,
                                           int64_t loops = 1);

}  // namespace refold
