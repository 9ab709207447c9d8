#include "engine/torch/weights.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/error.h"
#include "model/forward.h"

namespace refold {
namespace {

void dequantise_into(const Tensor& tensor, float* out) {
    const TensorBytes source(tensor);
    dequantise(tensor.type, source.bytes(), {out, static_cast<size_t>(tensor.elements())});
}

}  // namespace

TorchWeights::TorchWeights(const Model& model, at::ScalarType type, bool trainable)
    : topology_(model.topology), head_dim_(model.config.head_dim), type_(type) {
    const auto add = [&](const Slots& slots) {
        for (const auto& [slot, expression] : slots) {
            if (slot == Slot::rope_freqs) continue;
            for (const auto& name : tensors_of(expression)) add_leaf(model, name, trainable);
        }
    };
    for (const Slots& slots : topology_.positions) add(slots);
    add(topology_.globals);
    if (has(kModelPosition, Slot::rope_freqs)) {
        const Tensor& tensor = model.tensor(std::get<Dense>(at(kModelPosition, Slot::rope_freqs)).tensor);
        rope_frequencies_.resize(static_cast<size_t>(tensor.elements()));
        dequantise_into(tensor, rope_frequencies_.data());
    }
}

void TorchWeights::add_leaf(const Model& model, const std::string& name, bool trainable) {
    if (leaves_.contains(name)) return;
    const Tensor& tensor = model.tensor(name);
    const std::vector<int64_t> shape(tensor.shape.rbegin(), tensor.shape.rend());
    const at::Tensor values = at::empty(shape, at::kFloat);
    dequantise_into(tensor, values.data_ptr<float>());
    leaves_[name] = values.to(type_).set_requires_grad(trainable);
}

const Slots& TorchWeights::slots(size_t position) const {
    return position == kModelPosition ? topology_.globals : topology_.positions.at(position);
}

bool TorchWeights::has(size_t position, Slot slot) const { return slots(position).contains(slot); }

const Expression& TorchWeights::at(size_t position, Slot slot) const {
    const auto found = slots(position).find(slot);
    if (found == slots(position).end())
        fail(ErrorCode::internal, "torch engine", "the topology has no {}", slot_name(slot));
    return found->second;
}

at::Tensor TorchWeights::matrix(size_t position, Slot slot) const {
    const auto rows_of = [&](const std::string& name) {
        const at::Tensor& leaf = leaves_.at(name);
        return leaf.reshape({-1, leaf.size(-1)});
    };
    const Expression& expression = at(position, slot);
    if (const auto* dense = std::get_if<Dense>(&expression)) return rows_of(dense->tensor);
    const int64_t dimension = heads_are_columns(slot) ? 1 : 0;
    std::vector<at::Tensor> parts;
    for (const HeadRun& run : std::get<Heads>(expression).runs) {
        parts.push_back(rows_of(run.tensor).narrow(dimension, run.first * head_dim_, run.count * head_dim_));
    }
    return parts.size() == 1 ? parts.front() : at::cat(parts, dimension);
}

at::Tensor TorchWeights::vector(size_t position, Slot slot) const {
    return leaves_.at(std::get<Dense>(at(position, slot)).tensor).reshape({-1});
}

at::Tensor TorchWeights::bias(size_t position, Slot slot) const {
    const auto bias = bias_of(slot);
    return bias && has(position, *bias) ? vector(position, *bias) : at::Tensor();
}

uint64_t TorchWeights::bytes() const {
    uint64_t bytes = rope_frequencies_.size() * sizeof(float);
    for (const auto& [name, leaf] : leaves_) bytes += leaf.nbytes();
    return bytes;
}

}  // namespace refold
