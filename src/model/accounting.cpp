#include "model/accounting.h"

#include <set>
#include <tuple>
#include <utility>

namespace refold {
namespace {

// The slot that is computed first of those with the same input.
Slot first_of_input(Slot slot) {
    switch (slot) {
        case Slot::attn_k:
        case Slot::attn_v: return Slot::attn_q;
        case Slot::ffn_up: return Slot::ffn_gate;
        default: return slot;
    }
}

// Multiply-adds of one token, factor by factor. Tucker products that slots of one input have in common count
// once: t = U1^T x, and its products z with the core.
class Flops {
public:
    Flops(const Model& model, size_t position) : model_(model), position_(position) {}

    uint64_t of(Slot slot, const Expression& expression) {
        shape_ = slot_shape(slot, model_.config, position_);
        input_ = first_of_input(slot);
        return std::visit([&](const auto& e) { return count(e); }, expression);
    }

private:
    static uint64_t area(int64_t a, int64_t b) { return static_cast<uint64_t>(a * b); }
    uint64_t count(const Dense&) { return area(shape_.in, shape_.out); }
    uint64_t count(const Heads&) { return area(shape_.in, shape_.out); }
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
    size_t position_;
    SlotShape shape_;
    Slot input_ = Slot::attn_q;
    std::set<std::pair<Slot, std::string>> projections_;
    std::set<std::tuple<Slot, std::string, std::string>> cores_;
};

Cost cost_of(const Model& model, size_t kv_element_bytes) {
    const ModelConfig& c = model.config;
    Cost cost;
    std::set<std::string> seen;
    const auto visit = [&](const Slots& slots, size_t position) {
        Flops flops(model, position);
        for (const auto& [slot, expression] : slots) {
            for (const auto& name : tensors_of(expression)) {
                if (!seen.insert(name).second) continue;
                const Tensor& tensor = model.tensor(name);
                cost.parameters += static_cast<uint64_t>(tensor.elements());
                cost.bytes += tensor.bytes();
            }
            if (is_matrix(slot)) cost.flops_per_token += 2 * flops.of(slot, expression);
        }
    };
    for (size_t p = 0; p < model.topology.positions.size(); ++p) {
        visit(model.topology.positions[p], p);
        cost.kv_bytes_per_token +=
            2 * static_cast<uint64_t>(c.n_head_kv_of(p) * c.head_dim) * kv_element_bytes;
        cost.attention_flops_per_context_token += 4 * static_cast<uint64_t>(c.n_head_of(p) * c.head_dim);
    }
    visit(model.topology.globals, kModelPosition);
    return cost;
}

}  // namespace

Accounting account(const Model& model, size_t kv_element_bytes) {
    const Cost own = cost_of(model, kv_element_bytes);
    if (!model.has_sharing()) return {own, own};
    Model plain = model;
    plain.config.n_prefix = 0;  // has no dense form
    for (auto& slots : plain.topology.positions)
        std::erase_if(slots, [](const auto& e) { return is_prefix(e.first); });
    return {own, cost_of(without_sharing(plain), kv_element_bytes)};
}

}  // namespace refold
