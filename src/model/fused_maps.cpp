#include "model/fused_maps.h"

#include <algorithm>

#include "core/error.h"

namespace refold {
namespace {

// A tensor of a GGUF file that holds maps, or their biases, below each other.
struct FusedTensor {
    std::string name;
    std::vector<std::string> names;  // of the maps on their own
    std::vector<Slot> slots;
    bool vector = false;

    // Rows of a matrix, elements of a vector.
    int64_t extent(size_t i, const ModelConfig& config) const {
        const SlotShape shape = slot_shape(slots[i], config);
        return vector ? shape.in : shape.out;
    }
    int64_t extent_of(const Tensor& tensor) const { return vector ? tensor.elements() : tensor.rows(); }
    size_t bytes_of(const Tensor& tensor, int64_t count) const {
        return row_bytes(tensor.type, vector ? count : tensor.row_elements() * count);
    }
};

std::vector<FusedTensor> fused_tensors(const Family& family, const FusedMaps& maps, size_t layer) {
    const auto matrices = product_group(maps.first);
    FusedTensor weight{numbered(maps.weight, layer), {}, to_vector(matrices), false};
    for (const Slot slot : matrices) weight.names.push_back(tensor_name(family, slot, layer));
    if (maps.bias == nullptr) return {weight};
    FusedTensor bias{numbered(maps.bias, layer), {}, {}, true};
    for (size_t i = 0; i < matrices.size(); ++i) {
        bias.slots.push_back(*bias_of(matrices[i]));
        bias.names.push_back(weight.names[i].substr(0, weight.names[i].rfind('.')) + ".bias");
    }
    return {weight, bias};
}

// The joined tensor may have the name of one of its parts.
bool is_split_already(const Model& model, const FusedTensor& fused) {
    return std::any_of(fused.names.begin(), fused.names.end(), [&](const std::string& name) {
        return name != fused.name && model.tensors.contains(name);
    });
}

void split(Model& model, const FusedTensor& fused) {
    const auto found = model.tensors.find(fused.name);
    if (found == model.tensors.end() || is_split_already(model, fused)) return;
    const Tensor whole = found->second;
    int64_t total = 0;
    for (size_t i = 0; i < fused.slots.size(); ++i) total += fused.extent(i, model.config);
    if (fused.extent_of(whole) != total || (fused.vector && whole.shape.size() != 1)) {
        fail(ErrorCode::input, "model", "tensor '{}' of shape [{}] does not hold maps of {} rows ({})",
             fused.name, fmt::join(whole.shape, ", "), total, fmt::join(fused.names, ", "));
    }
    model.tensors.erase(found);
    size_t offset = 0;
    for (size_t i = 0; i < fused.slots.size(); ++i) {
        Tensor own = whole;
        own.shape.back() = fused.extent(i, model.config);
        const size_t bytes = fused.bytes_of(whole, own.shape.back());
        if (whole.produce) {
            own.produce = [whole, offset, bytes] {
                const TensorBytes read(whole);
                const auto part = read.bytes().subspan(offset, bytes);
                return std::vector<std::byte>(part.begin(), part.end());
            };
        } else {
            own.mapped = whole.mapped.subspan(offset, bytes);
        }
        offset += bytes;
        model.tensors[fused.names[i]] = std::move(own);
    }
}

void join(const ModelConfig& config, const FusedTensor& fused, std::map<std::string, Tensor>& tensors) {
    std::vector<Tensor> parts;
    for (size_t i = 0; i < fused.names.size(); ++i) {
        const auto found = tensors.find(fused.names[i]);
        if (found == tensors.end() || fused.extent_of(found->second) != fused.extent(i, config)) return;
        parts.push_back(found->second);
        if (parts[i].type != parts[0].type) return;
    }
    Tensor joined{parts[0].type, parts[0].shape, {}, [parts] {
                      std::vector<std::byte> bytes;
                      for (const Tensor& tensor : parts) {
                          const TensorBytes read(tensor);
                          bytes.insert(bytes.end(), read.bytes().begin(), read.bytes().end());
                      }
                      return bytes;
                  }};
    joined.shape.back() = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
        joined.shape.back() += fused.extent(i, config);
        tensors.erase(fused.names[i]);
    }
    tensors[fused.name] = std::move(joined);
}

}  // namespace

void split_fused_maps(Model& model, size_t layers) {
    std::vector<FusedMaps> maps = model.family->fused;
    if (std::none_of(maps.begin(), maps.end(), [](const FusedMaps& m) { return m.first == Slot::attn_q; }))
        maps.push_back(kFusedQkv);
    for (size_t l = 0; l < layers; ++l) {
        for (const FusedMaps& map : maps)
            for (const FusedTensor& fused : fused_tensors(*model.family, map, l)) split(model, fused);
    }
}

std::map<std::string, Tensor> with_fused_maps(const Model& model) {
    std::map<std::string, Tensor> tensors = model.tensors;
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        for (const FusedMaps& map : model.family->fused)
            for (const FusedTensor& fused : fused_tensors(*model.family, map, l))
                join(model.config, fused, tensors);
    }
    return tensors;
}

}  // namespace refold
