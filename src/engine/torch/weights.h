// A model's weights as torch tensors: every stored tensor is one leaf, whatever shares it, so its gradient is
// the sum over its uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/torch/factors.h"
#include "model/model.h"

namespace refold {

class TorchWeights {
public:
    // Dequantises the tensors that the topology refers to, or only those of a range of positions; `options`
    // are type (at::kFloat or at::kDouble) and device.
    TorchWeights(const Model& model, at::TensorOptions options, bool trainable,
                 FactoredExecution factored = FactoredExecution::automatic,
                 std::optional<PositionRange> range = std::nullopt);

    // `position` may be kModelPosition in what follows.
    bool has(size_t position, Slot slot) const;
    // A matrix, table or prefix [out, in], put together from its parts or factors.
    at::Tensor matrix(size_t position, Slot slot) const;
    // [features]
    at::Tensor vector(size_t position, Slot slot) const;
    // The vector that is added to the slot's result; undefined when there is none.
    at::Tensor bias(size_t position, Slot slot) const;

    // Products of one x with factors U1, by their names: slots that have x and U1 in common share them.
    using Projections = std::map<std::string, at::Tensor>;
    // x [tokens, in], of the products' type, times the slot's weights, plus its bias: [tokens, out]. Weights
    // made of factors are applied factor by factor where that takes fewer operations (or as the constructor
    // was told).
    at::Tensor linear(size_t position, Slot slot, const at::Tensor& x, Projections& projections) const;

    // Element type of products; that of the weights, unless set.
    void set_products(at::ScalarType type) { products_ = type; }
    at::Tensor to_products(const at::Tensor& x) const { return x.to(products_); }

    // Stored tensors by name, [rows, row elements], [elements] or, the cores of Tucker decompositions,
    // [heads, R3, R2, R1]. The frequencies of the rotation are constants and not among them.
    const std::map<std::string, at::Tensor>& leaves() const { return leaves_; }
    const std::vector<float>& rope_frequencies() const { return rope_frequencies_; }
    // Those that a position reads.
    std::vector<at::Tensor> leaves_of(size_t position) const;
    const Topology& topology() const { return topology_; }
    size_t n_positions() const { return topology_.positions.size(); }
    at::ScalarType type() const { return type_; }
    at::Device device() const { return device_; }
    uint64_t bytes() const;

private:
    const Slots& slots(size_t position) const;
    const Expression& at(size_t position, Slot slot) const;
    void add_leaf(const Model& model, const std::string& name, bool trainable);
    // A leaf as a matrix, in the element type `type`, like all made of it.
    at::Tensor rows_of(const std::string& name, at::ScalarType type) const;
    at::Tensor matrix_of(const Expression& expression, Slot slot, SlotShape shape, at::ScalarType type) const;
    at::Tensor product(const Expression& expression, Slot slot, SlotShape shape, const at::Tensor& x,
                       Projections& projections) const;
    LowRankFactors factors_of(const LowRank& expression, at::ScalarType type) const;
    TuckerFactors factors_of(const Tucker& expression, SlotShape shape, at::ScalarType type) const;
    template <typename Factors>
    bool factor_by_factor(const Factors& factors, int64_t tokens) const;

    ModelConfig config_;
    Topology topology_;
    at::ScalarType type_, products_;
    at::Device device_;
    FactoredExecution factored_;
    std::map<std::string, at::Tensor> leaves_;
    std::vector<float> rope_frequencies_;
};

}  // namespace refold
