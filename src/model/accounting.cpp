#include "model/accounting.h"

#include <fmt/format.h>

#include <set>
#include <tuple>
#include <utility>

#include "model/cache_groups.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

// Multiply-adds of one token, factor by factor. The Tucker products that slots of one input share count once:
// t = U1^T x, and the product of t with the core.
class Flops {
public:
    Flops(const Model& model, size_t layer) : model_(model), layer_(layer) {}

    uint64_t of(Slot slot, const Expression& expression) {
        shape_ = slot_shape(slot, model_.config, layer_);
        input_ = *properties(slot).group;
        return std::visit([&](const auto& e) { return count(e); }, expression);
    }

private:
    static uint64_t area(int64_t a, int64_t b) { return static_cast<uint64_t>(a * b); }
    uint64_t count(const Dense&) { return area(shape_.in, shape_.out); }
    uint64_t count(const Heads&) { return area(shape_.in, shape_.out); }
    uint64_t count(const RowParts&) { return area(shape_.in, shape_.out); }
    uint64_t count(const LowRank& e) {
        return area(model_.tensor(e.u).row_elements(), shape_.in + shape_.out);
    }
    uint64_t count(const Tucker& e) {
        const Tensor &core = model_.tensor(e.core), &u1 = model_.tensor(e.model);
        const int64_t heads = core.rows() / (core.shape[1] * core.shape[2]);
        uint64_t flops = area(e.transposed ? shape_.in : shape_.out, core.shape[1]) +
                         area(heads * core.shape[1], core.shape[2]);
        // Transposed, U2 comes first: nothing is shared.
        if (e.transposed || projections_.insert({input_, e.model}).second)
            flops += static_cast<uint64_t>(u1.elements());
        if (e.transposed || cores_.insert({input_, e.model, e.core}).second)
            flops += static_cast<uint64_t>(core.elements());
        return flops;
    }
    uint64_t count(const Plus& e) {
        return std::visit([&](const auto& base) { return count(base); }, e.base) + count(e.term);
    }

    const Model& model_;
    size_t layer_;
    SlotShape shape_;
    Slot input_ = Slot::attn_q;
    std::set<std::pair<Slot, std::string>> projections_;
    std::set<std::tuple<Slot, std::string, std::string>> cores_;
};

// Keys and values that are this layer's own.
uint64_t kv_bytes_per_row(const Model& model, size_t layer, size_t element_bytes) {
    const ModelConfig& c = model.config;
    const AttentionSource& source = model.topology.source(layer);
    const uint64_t cached = source.kv ? 0 : source.probabilities ? 1 : 2;
    return cached * static_cast<uint64_t>(c.n_head_kv_of(layer) * c.head_dim) * element_bytes;
}

Cost cost_of(const Model& model, size_t kv_element_bytes) {
    const ModelConfig& c = model.config;
    Cost cost;
    std::set<std::string> seen;
    const auto visit = [&](const Slots& slots, size_t layer) {
        Flops flops(model, layer);
        for (const auto& [slot, expression] : slots) {
            const auto used = [&, whole = consists_of_experts(slot)](uint64_t count) {
                if (!whole) return count;
                return count * static_cast<uint64_t>(c.n_expert_used) /
                       static_cast<uint64_t>(c.n_expert_of(layer));
            };
            for (const auto& name : tensors_of(expression)) {
                if (!seen.insert(name).second) continue;
                const Tensor& tensor = model.tensor(name);
                const auto* rows = std::get_if<RowParts>(&expression);
                if (rows == nullptr || name != rows->ids) {
                    cost.parameters += static_cast<uint64_t>(tensor.elements());
                    cost.active_parameters += used(static_cast<uint64_t>(tensor.elements()));
                }
                cost.bytes += tensor.bytes();
            }
            // Neither exit maps nor the head at each exit are counted.
            if (is_matrix(slot) && properties(slot).module != SlotModule::exit)
                cost.flops_per_token += used(2 * flops.of(slot, expression));
        }
    };
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        visit(model.topology.layers[l], l);
        cost.kv_bytes_per_token += kv_bytes_per_row(model, l, kv_element_bytes);
        // Scores and values.
        const uint64_t products = model.topology.source(l).probabilities ? 1 : 2;
        cost.attention_flops_per_context_token +=
            2 * products * static_cast<uint64_t>(c.n_head_of(l) * c.head_dim);
    }
    visit(model.topology.globals, kWholeModel);
    for (const auto& name : unread_tensors(model.family, c, model.topology.layers.size())) {
        const auto found = model.tensors.find(name);
        if (found == model.tensors.end() || !seen.insert(name).second) continue;
        cost.parameters += static_cast<uint64_t>(found->second.elements());
        cost.bytes += found->second.bytes();
    }
    return cost;
}

// Without what has no dense form: no prefix, no W_c, and queries, keys and values of its own in every layer.
Model without_additions(const Model& model) {
    Model plain = model;
    plain.config.n_prefix = 0;
    const auto by_birth = implied_sources(model.config, model.topology.layers.size());
    std::erase_if(plain.topology.sources, [&](const auto& entry) {
        const auto found = by_birth.find(entry.first);
        return found == by_birth.end() || found->second != entry.second;
    });
    for (size_t l = 0; l < plain.topology.layers.size(); ++l) {
        Slots& slots = plain.topology.layers[l];
        std::erase_if(slots, [](const auto& e) { return is_prefix(e.first) || is_compensation(e.first); });
        if (model.topology.source(l) == plain.topology.source(l)) continue;
        for (const auto& description : model.family->layer_slots) {
            const Slot slot = description.slot;
            const Slots& source = model.topology.layers[key_layer(model.topology, l)];
            if (!model.topology.is_replaced(l, slot) || !(description.required || source.contains(slot)))
                continue;
            const SlotShape shape = slot_shape(slot, model.config, l);
            const auto* like = source.contains(slot) ? std::get_if<Dense>(&source.at(slot)) : nullptr;
            const DType type = like != nullptr   ? model.tensor(like->tensor).type
                               : is_vector(slot) ? DType::F32
                                                 : DType::F16;
            const std::string name = fmt::format("replaced.{}.{}", l, slot_name(slot));
            plain.tensors[name] = Tensor{
                type, is_vector(slot) ? std::vector{shape.in} : std::vector{shape.in, shape.out}, {}, {}};
            slots[slot] = Dense{name};
        }
    }
    return plain;
}

}  // namespace

Accounting account(const Model& model, size_t kv_element_bytes) {
    const Cost own = cost_of(model, kv_element_bytes);
    if (!model.has_sharing()) return {own, own};
    return {own, cost_of(without_sharing(without_additions(model)), kv_element_bytes)};
}

uint64_t kv_bytes(const Model& model, int64_t context, int64_t rows, size_t kv_element_bytes) {
    uint64_t bytes = 0;
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        bytes += kv_bytes_per_row(model, l, kv_element_bytes) *
                 static_cast<uint64_t>(evictable(model, l) ? rows : context);
    }
    return bytes;
}

}  // namespace refold
