// A model's weights as torch tensors: every stored tensor is one leaf, whatever shares it, so its gradient is
// the sum over its uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

class TorchWeights {
public:
    // Dequantises the tensors that the topology refers to; `type` is at::kFloat or at::kDouble.
    TorchWeights(const Model& model, at::ScalarType type, bool trainable);

    // `position` may be kModelPosition in what follows.
    bool has(size_t position, Slot slot) const;
    // A matrix or table [out, in], put together from its parts.
    at::Tensor matrix(size_t position, Slot slot) const;
    // [features]
    at::Tensor vector(size_t position, Slot slot) const;
    // The vector that is added to the slot's result; undefined when there is none.
    at::Tensor bias(size_t position, Slot slot) const;

    // Stored tensors by name, [rows, row elements] or [elements]. The frequencies of the rotation are
    // constants and not among them.
    const std::map<std::string, at::Tensor>& leaves() const { return leaves_; }
    const std::vector<float>& rope_frequencies() const { return rope_frequencies_; }
    size_t n_positions() const { return topology_.positions.size(); }
    at::ScalarType type() const { return type_; }
    uint64_t bytes() const;

private:
    const Slots& slots(size_t position) const;
    const Expression& at(size_t position, Slot slot) const;
    void add_leaf(const Model& model, const std::string& name, bool trainable);

    Topology topology_;
    int64_t head_dim_;
    at::ScalarType type_;
    std::map<std::string, at::Tensor> leaves_;
    std::vector<float> rope_frequencies_;
};

}  // namespace refold
