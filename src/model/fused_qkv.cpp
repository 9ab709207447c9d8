#include "model/fused_qkv.h"

#include <array>

#include "core/error.h"

namespace refold {
namespace {

constexpr auto kQkv = product_group(Slot::attn_q);

// A tensor of a GGUF file that holds Q, K and V, or their biases, below each other.
struct FusedTensor {
    std::string name;
    std::array<std::string, kQkv.size()> names;  // of Q, K and V on their own
    std::array<Slot, kQkv.size()> slots;
    bool vector;

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

std::array<FusedTensor, 2> fused_tensors(size_t layer) {
    FusedTensor weight{numbered("blk.{}.attn_qkv.weight", layer), {}, {}, false},
        bias{numbered("blk.{}.attn_qkv.bias", layer), {}, {}, true};
    for (size_t i = 0; i < kQkv.size(); ++i) {
        weight.slots[i] = kQkv[i];
        bias.slots[i] = *bias_of(kQkv[i]);
        const std::string stem = fmt::format("blk.{}.attn_{}.", layer, "qkv"[i]);
        weight.names[i] = stem + "weight";
        bias.names[i] = stem + "bias";
    }
    return {weight, bias};
}

}  // namespace

void split_fused_qkv(Model& model, size_t layers) {
    for (size_t l = 0; l < layers; ++l) {
        for (const FusedTensor& fused : fused_tensors(l)) {
            const auto found = model.tensors.find(fused.name);
            if (found == model.tensors.end()) continue;
            const Tensor whole = found->second;
            int64_t total = 0;
            for (size_t i = 0; i < kQkv.size(); ++i) total += fused.extent(i, model.config);
            if (fused.extent_of(whole) != total || (fused.vector && whole.shape.size() != 1)) {
                fail(ErrorCode::input, "model",
                     "tensor '{}' of shape [{}] does not hold Q, K and V of {} rows", fused.name,
                     fmt::join(whole.shape, ", "), total);
            }
            size_t offset = 0;
            for (size_t i = 0; i < kQkv.size(); ++i) {
                Tensor own = whole;
                own.shape.back() = fused.extent(i, model.config);
                const size_t bytes = fused.bytes_of(whole, own.shape.back());
                own.mapped = whole.mapped.subspan(offset, bytes);
                offset += bytes;
                model.tensors[fused.names[i]] = std::move(own);
            }
            model.tensors.erase(fused.name);
        }
    }
}

std::map<std::string, Tensor> with_fused_qkv(const Model& model) {
    std::map<std::string, Tensor> tensors = model.tensors;
    if (!model.family->fused_qkv) return tensors;
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        for (const FusedTensor& fused : fused_tensors(l)) {
            std::array<Tensor, kQkv.size()> qkv;
            bool whole = true;
            for (size_t i = 0; i < qkv.size() && whole; ++i) {
                const auto found = tensors.find(fused.names[i]);
                whole = found != tensors.end();
                if (!whole) break;
                qkv[i] = found->second;
                whole =
                    qkv[i].type == qkv[0].type && fused.extent_of(qkv[i]) == fused.extent(i, model.config);
            }
            if (!whole) continue;
            Tensor joined{qkv[0].type, qkv[0].shape, {}, [qkv] {
                              std::vector<std::byte> bytes;
                              for (const Tensor& tensor : qkv) {
                                  const TensorBytes read(tensor);
                                  bytes.insert(bytes.end(), read.bytes().begin(), read.bytes().end());
                              }
                              return bytes;
                          }};
            joined.shape.back() = 0;
            for (size_t i = 0; i < qkv.size(); ++i) {
                joined.shape.back() += fused.extent(i, model.config);
                tensors.erase(fused.names[i]);
            }
            tensors[fused.name] = std::move(joined);
        }
    }
    return tensors;
}

}  // namespace refold
