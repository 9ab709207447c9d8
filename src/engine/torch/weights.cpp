#include "engine/torch/weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "model/forward.h"
#include "model/materialize.h"
#include "model/row_parts.h"

namespace refold {
namespace {

at::Tensor copied(const Tensor& tensor, at::Device device, at::ScalarType type) {
    const std::vector<int64_t> shape(tensor.shape.rbegin(), tensor.shape.rend());
    const TensorBytes source(tensor);
    const bool half = tensor.type == DType::F16;
    if (!device.is_cpu() && (half || tensor.type == DType::BF16)) {
        // Half as many bytes on the way, and the same numbers there.
        return at::from_blob(const_cast<std::byte*>(source.bytes().data()), shape,
                             half ? at::kHalf : at::kBFloat16)
            .to(device)
            .to(type);
    }
    const at::Tensor values = at::empty(shape, at::kFloat);
    dequantize(tensor.type, source.bytes(),
               {values.data_ptr<float>(), static_cast<size_t>(tensor.elements())});
    return values.to(device, type);
}

}  // namespace

TorchWeights::TorchWeights(const Model& model, at::TensorOptions options, bool trainable,
                           FactoredExecution factored, std::optional<LayerRange> range)
    : config_(model.config),
      topology_(model.topology),
      stored_(c10::typeMetaToScalarType(options.dtype())),
      type_(stored_ == at::kBFloat16 ? at::kFloat : stored_),
      products_(type_),
      device_(options.device()),
      factored_(factored) {
    const auto add = [&](const Slots& slots) {
        for (const auto& [slot, expression] : slots) {
            if (properties(slot).kind == SlotKind::rope_factors) continue;
            if (const auto* parts = std::get_if<RowParts>(&expression)) {
                add_row_parts(model, *parts, trainable);
                continue;
            }
            for (const auto& name : tensors_of(expression)) add_leaf(model, name, trainable);
        }
    };
    for (size_t p = 0; p < n_layer(); ++p) {
        if (!range || range->contains(p)) add(topology_.layers[p]);
    }
    if (!range) add(topology_.globals);
    for (const Slot slot : {Slot::rope_freqs, Slot::rope_freqs_long}) {
        if (has(kWholeModel, slot)) rope_frequencies_[slot] = materialize(model, at(kWholeModel, slot), slot);
    }
}

void TorchWeights::add_leaf(const Model& model, const std::string& name, bool trainable) {
    if (leaves_.contains(name)) return;
    const Tensor& tensor = model.tensor(name);
    leaves_[name] =
        copied(tensor, device_, tensor.shape.size() > 1 ? stored_ : type_).set_requires_grad(trainable);
}

// Joined once where nothing trains the parts.
void TorchWeights::add_row_parts(const Model& model, const RowParts& parts, bool trainable) {
    if (row_places_.contains(parts.ids)) return;
    const std::vector<int32_t> places = places_of_rows(model, parts);
    row_places_[parts.ids] = at::tensor(places, at::kInt).to(device_);
    for (const std::string& part : parts.parts) add_leaf(model, part, trainable);
    if (trainable) return;
    leaves_[parts.ids] = joined_rows(parts, stored_);
    for (const std::string& part : parts.parts) leaves_.erase(part);
}

at::Tensor TorchWeights::joined_rows(const RowParts& rows, at::ScalarType type) const {
    if (leaves_.contains(rows.ids)) return rows_of(rows.ids, type);
    std::vector<at::Tensor> parts;
    for (const std::string& part : rows.parts) parts.push_back(rows_of(part, type));
    return at::cat(parts).index_select(0, row_places_.at(rows.ids));
}

const Slots& TorchWeights::slots(size_t layer) const {
    return layer == kWholeModel ? topology_.globals : topology_.layers.at(layer);
}

bool TorchWeights::has(size_t layer, Slot slot) const { return slots(layer).contains(slot); }

const Expression& TorchWeights::at(size_t layer, Slot slot) const {
    const auto found = slots(layer).find(slot);
    if (found == slots(layer).end())
        fail(ErrorCode::internal, "torch engine", "the topology has no {}", slot_name(slot));
    return found->second;
}

std::vector<at::Tensor> TorchWeights::leaves_of(size_t layer) const {
    std::set<std::string> names;
    for (const auto& [slot, expression] : slots(layer)) {
        if (properties(slot).kind == SlotKind::rope_factors) continue;
        for (auto& name : tensors_of(expression))
            if (leaves_.contains(name)) names.insert(std::move(name));
    }
    std::vector<at::Tensor> leaves;
    for (const auto& name : names) leaves.push_back(leaves_.at(name));
    return leaves;
}

at::Tensor TorchWeights::rows_of(const std::string& name, at::ScalarType type) const {
    const at::Tensor& leaf = leaves_.at(name);
    return leaf.reshape({-1, leaf.size(-1)}).to(type);
}

LowRankFactors TorchWeights::factors_of(const LowRank& e, at::ScalarType type) const {
    LowRankFactors factors{rows_of(e.u, type), rows_of(e.v, type), {}, e.transposed};
    if (!e.scale.empty()) factors.scale = rows_of(e.scale, type).select(0, e.row);
    return factors;
}

TuckerFactors TorchWeights::factors_of(const Tucker& e, SlotShape shape, at::ScalarType type) const {
    const at::Tensor head = rows_of(e.head, type);
    const int64_t heads = (e.transposed ? shape.in : shape.out) / head.size(1);
    return {tucker_slices(leaves_.at(e.core).to(type), rows_of(e.roles, type), e.role, heads),
            rows_of(e.model, type), e.halves ? paired(head) : head, e.transposed};
}

at::Tensor TorchWeights::matrix_of(const Expression& expression, Slot slot, SlotShape shape,
                                   at::ScalarType type) const {
    if (const auto* dense = std::get_if<Dense>(&expression)) return rows_of(dense->tensor, type);
    if (const auto* low_rank = std::get_if<LowRank>(&expression)) return factors_of(*low_rank, type).matrix();
    if (const auto* tucker = std::get_if<Tucker>(&expression))
        return factors_of(*tucker, shape, type).matrix();
    if (const auto* plus = std::get_if<Plus>(&expression))
        return matrix_of(base_of(expression), slot, shape, type) + factors_of(plus->term, type).matrix();
    if (const auto* rows = std::get_if<RowParts>(&expression)) return joined_rows(*rows, type);
    const int64_t dimension = heads_are_columns(slot) ? 1 : 0, size = block_size(slot, config_);
    std::vector<at::Tensor> parts;
    for (const HeadRun& run : std::get<Heads>(expression).runs)
        parts.push_back(rows_of(run.tensor, type).narrow(dimension, run.first * size, run.count * size));
    return parts.size() == 1 ? parts.front() : at::cat(parts, dimension);
}

at::Tensor TorchWeights::matrix(size_t layer, Slot slot) const {
    return matrix_of(at(layer, slot), slot, slot_shape(slot, config_, layer), type_);
}

template <typename Factors>
bool TorchWeights::factor_by_factor(const Factors& factors, int64_t tokens) const {
    if (factored_ != FactoredExecution::automatic) return factored_ == FactoredExecution::factored;
    return factors.factored_cost(tokens) <= factors.reconstructed_cost(tokens);
}

at::Tensor TorchWeights::product(const Expression& expression, Slot slot, SlotShape shape,
                                 const at::Tensor& x, Projections& projections) const {
    if (const auto* plus = std::get_if<Plus>(&expression)) {
        return product(base_of(expression), slot, shape, x, projections) +
               product(plus->term, slot, shape, x, projections);
    }
    if (const auto* low_rank = std::get_if<LowRank>(&expression)) {
        const LowRankFactors factors = factors_of(*low_rank, products_);
        if (factor_by_factor(factors, x.size(0))) return factors.product(x);
        return at::linear(x, factors.matrix());
    }
    if (const auto* tucker = std::get_if<Tucker>(&expression)) {
        const TuckerFactors factors = factors_of(*tucker, shape, products_);
        if (!factor_by_factor(factors, x.size(0))) return at::linear(x, factors.matrix());
        if (tucker->transposed) return factors.product(x);
        at::Tensor& projection = projections[tucker->model];
        if (!projection.defined()) projection = factors.projection(x);
        return factors.product(projection);
    }
    return at::linear(x, matrix_of(expression, slot, shape, products_));
}

at::Tensor TorchWeights::linear(size_t layer, Slot slot, const at::Tensor& x,
                                Projections& projections) const {
    const Expression& expression = at(layer, slot);
    const SlotShape shape = slot_shape(slot, config_, layer);
    at::Tensor added = bias(layer, slot);
    if (added.defined()) added = to_products(added);
    if (std::holds_alternative<Dense>(expression) || std::holds_alternative<Heads>(expression))
        return at::linear(x, matrix_of(expression, slot, shape, products_), added);
    const at::Tensor y = product(expression, slot, shape, x, projections);
    return added.defined() ? y + added : y;
}

at::Tensor TorchWeights::vector(size_t layer, Slot slot) const {
    return leaves_.at(std::get<Dense>(at(layer, slot)).tensor).reshape({-1}).to(type_);
}

at::Tensor TorchWeights::bias(size_t layer, Slot slot) const {
    const auto bias = bias_of(slot);
    return bias && has(layer, *bias) ? vector(layer, *bias) : at::Tensor();
}

uint64_t TorchWeights::bytes() const {
    uint64_t bytes = 0;
    for (const auto& [slot, values] : rope_frequencies_) bytes += values.size() * sizeof(float);
    for (const auto& [name, leaf] : leaves_) bytes += leaf.nbytes();
    return bytes;
}

}  // namespace refold
