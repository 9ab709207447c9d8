#include "model/fused_qkv.h"

#include <array>

#include "core/error.h"

namespace refold {
namespace {

struct Fused {
    std::string name;
    std::array<std::string, 3> parts;
    std::array<Slot, 3> slots;
    bool vector;
};

std::array<Fused, 2> fused_tensors(size_t position) {
    const auto name = [&](const char* pattern) { return numbered(pattern, position); };
    return {Fused{name("blk.{}.attn_qkv.weight"),
                  {name("blk.{}.attn_q.weight"), name("blk.{}.attn_k.weight"), name("blk.{}.attn_v.weight")},
                  {Slot::attn_q, Slot::attn_k, Slot::attn_v},
                  false},
            Fused{name("blk.{}.attn_qkv.bias"),
                  {name("blk.{}.attn_q.bias"), name("blk.{}.attn_k.bias"), name("blk.{}.attn_v.bias")},
                  {Slot::attn_q_bias, Slot::attn_k_bias, Slot::attn_v_bias},
                  true}};
}

// Rows of a matrix, elements of a vector.
int64_t extent(const Fused& fused, size_t part, const ModelConfig& config) {
    const SlotShape shape = slot_shape(fused.slots[part], config);
    return fused.vector ? shape.in : shape.out;
}

size_t extent_bytes(const Tensor& tensor, bool vector, int64_t count) {
    return vector ? row_bytes(tensor.type, count)
                  : row_bytes(tensor.type, tensor.row_elements()) * static_cast<size_t>(count);
}

}  // namespace

void split_fused_qkv(Model& model, size_t layers) {
    for (size_t p = 0; p < layers; ++p) {
        for (const Fused& fused : fused_tensors(p)) {
            const auto found = model.tensors.find(fused.name);
            if (found == model.tensors.end()) continue;
            const Tensor whole = found->second;
            const int64_t given = fused.vector ? whole.elements() : whole.rows();
            const int64_t total = extent(fused, 0, model.config) + extent(fused, 1, model.config) +
                                  extent(fused, 2, model.config);
            if (given != total || (fused.vector && whole.shape.size() != 1)) {
                fail(ErrorCode::input, "model",
                     "tensor '{}' of shape [{}] does not hold Q, K and V of {} rows", fused.name,
                     fmt::join(whole.shape, ", "), total);
            }
            size_t offset = 0;
            for (size_t i = 0; i < 3; ++i) {
                const int64_t count = extent(fused, i, model.config);
                Tensor part = whole;
                part.shape.back() = count;
                const size_t bytes = extent_bytes(whole, fused.vector, count);
                part.mapped = whole.mapped.subspan(offset, bytes);
                offset += bytes;
                model.tensors[fused.parts[i]] = std::move(part);
            }
            model.tensors.erase(fused.name);
        }
    }
}

std::map<std::string, Tensor> with_fused_qkv(const Model& model) {
    std::map<std::string, Tensor> tensors = model.tensors;
    if (!model.family->fused_qkv) return tensors;
    for (size_t p = 0; p < model.topology.positions.size(); ++p) {
        for (const Fused& fused : fused_tensors(p)) {
            std::array<Tensor, 3> parts;
            bool whole = true;
            for (size_t i = 0; i < 3 && whole; ++i) {
                const auto found = tensors.find(fused.parts[i]);
                whole = found != tensors.end();
                if (!whole) break;
                parts[i] = found->second;
                whole =
                    parts[i].type == parts[0].type &&
                    (fused.vector ? parts[i].elements() : parts[i].rows()) == extent(fused, i, model.config);
            }
            if (!whole) continue;
            Tensor joined{parts[0].type, parts[0].shape, {}, [parts] {
                              std::vector<std::byte> bytes;
                              for (const Tensor& part : parts) {
                                  const TensorBytes read(part);
                                  bytes.insert(bytes.end(), read.bytes().begin(), read.bytes().end());
                              }
                              return bytes;
                          }};
            joined.shape.back() = 0;
            for (size_t i = 0; i < 3; ++i) {
                joined.shape.back() += extent(fused, i, model.config);
                tensors.erase(fused.parts[i]);
            }
            tensors[fused.name] = std::move(joined);
        }
    }
    return tensors;
}

}  // namespace refold
