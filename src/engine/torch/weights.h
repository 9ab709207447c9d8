// A model's weights as torch tensors. Every stored tensor is one leaf, so the gradient of a shared tensor is
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
    // Dequantizes the tensors that the topology refers to, or only those of a range of layers. `options`:
    // device and type, at::kFloat or at::kDouble; or at::kBFloat16, which only matrices have: vectors and
    // activations are float32.
    TorchWeights(const Model& model, at::TensorOptions options, bool trainable,
                 FactoredExecution factored = FactoredExecution::automatic,
                 std::optional<LayerRange> range = std::nullopt);

    // `layer` may be kWholeModel in the functions below.
    bool has(size_t layer, Slot slot) const;
    // A matrix, table or prefix [out, in], assembled from its heads or factors.
    at::Tensor matrix(size_t layer, Slot slot) const;
    // [features]
    at::Tensor vector(size_t layer, Slot slot) const;
    // The bias of the slot [out]; undefined: none.
    at::Tensor bias(size_t layer, Slot slot) const;

    // Products of one x with factors U1, by the name of U1: slots with the same x and U1 share them.
    using Projections = std::map<std::string, at::Tensor>;
    // x [tokens, in], in the type of products, times the slot's weight, plus its bias: [tokens, out].
    // Factored weights are applied factor by factor where that takes fewer operations, or as the
    // constructor's `factored` says.
    at::Tensor linear(size_t layer, Slot slot, const at::Tensor& x, Projections& projections) const;

    // Element type of products; default: that of the weights.
    void set_products(at::ScalarType type) { products_ = type; }
    at::Tensor to_products(const at::Tensor& x) const { return x.to(products_); }

    // Stored tensors by name: [rows, row elements], [elements], or [heads, R3, R2, R1] for Tucker cores. RoPE
    // frequencies are constants and not among them, nor which rows parts of tables have: where nothing is
    // trained, the whole table stands under the name of its list.
    const std::map<std::string, at::Tensor>& leaves() const { return leaves_; }
    // Of Slot::rope_freqs or rope_freqs_long; empty where the model has none.
    const std::vector<float>& rope_frequencies(Slot slot) const {
        static const std::vector<float> none;
        const auto found = rope_frequencies_.find(slot);
        return found == rope_frequencies_.end() ? none : found->second;
    }
    // The leaves that a layer reads.
    std::vector<at::Tensor> leaves_of(size_t layer) const;
    const Topology& topology() const { return topology_; }
    size_t n_layer() const { return topology_.layers.size(); }
    // Of vectors and activations.
    at::ScalarType type() const { return type_; }
    at::Device device() const { return device_; }
    uint64_t bytes() const;

private:
    const Slots& slots(size_t layer) const;
    const Expression& at(size_t layer, Slot slot) const;
    void add_leaf(const Model& model, const std::string& name, bool trainable);
    void add_row_parts(const Model& model, const RowParts& parts, bool trainable);
    at::Tensor joined_rows(const RowParts& rows, at::ScalarType type) const;
    // A leaf as a matrix of element type `type`.
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
    at::ScalarType stored_, type_, products_;  // stored_: of matrices
    at::Device device_;
    FactoredExecution factored_;
    std::map<std::string, at::Tensor> leaves_;
    std::map<std::string, at::Tensor> row_places_;  // by RowParts::ids: where each row is in the parts
    std::map<Slot, std::vector<float>> rope_frequencies_;
};

}  // namespace refold
