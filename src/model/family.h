// An architecture is a description: how its metadata and tensors are named. The forward pass is not here.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "model/config.h"
#include "model/topology.h"

namespace refold {

struct SlotDescription {
    Slot slot;
    const char* tensor;  // GGUF name; "{}" stands for the position
    bool required;
    const char* fallback = nullptr;  // tensor used when `tensor` is absent (tied embeddings)
};

struct Family {
    const char* name;  // general.architecture
    std::span<const SlotDescription> position_slots;
    std::span<const SlotDescription> model_slots;
    // Reads the family's keys. Throws Error(input) naming the key, Error(unsupported) for variants that the
    // forward pass does not compute.
    ModelConfig (*read_config)(const GgufMetadata& metadata);
};

std::span<const Family* const> families();
// Throws Error(unsupported) listing the known families.
const Family& find_family(const std::string& name);

// GGUF name of the tensor for a slot of a position.
std::string tensor_name(const SlotDescription& slot, size_t position);
std::string tensor_name(const Family& family, Slot slot, size_t position);

// The topology that the family's naming implies: every slot its own tensor. `has_tensor` tells which optional
// tensors exist; required ones are named even when absent (validation reports them).
Topology implied_topology(const Family& family, size_t positions,
                          const std::function<bool(const std::string&)>& has_tensor);

}  // namespace refold
