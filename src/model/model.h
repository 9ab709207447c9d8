// A model is tensors + a topology.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "io/gguf.h"
#include "model/config.h"
#include "model/family.h"
#include "model/tensor.h"
#include "model/topology.h"

namespace refold {

// Cheap to copy: tensor data is shared.
class Model {
public:
    ModelConfig config;
    Topology topology;
    GgufMetadata metadata;
    const Family* family = nullptr;
    std::string label;                          // where it came from, for messages
    std::shared_ptr<const SourceFiles> source;  // keeps the mapped tensors alive
    std::map<std::string, Tensor> tensors;
    // Read from a config.json alone: tensors have shapes and types; reading one throws Error(input).
    bool shapes_only = false;

    // Throws Error(input) naming the tensor when it does not exist.
    const Tensor& tensor(const std::string& name) const;
    // The topology that the family's naming implies for this model's tensors: no sharing.
    Topology implied() const;
    // Forgets tensors that no slot refers to, but for unread_tensors().
    void drop_unreferenced();
    // The model is not what its architecture stores: layers share tensors, heads or factors, differ in size
    // (without_sharing() undoes these), or have prefixes, attention of other layers or W_c (which it
    // refuses).
    bool has_sharing() const;
};

}  // namespace refold
