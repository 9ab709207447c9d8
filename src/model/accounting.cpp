#include "model/accounting.h"

#include <set>

namespace refold {

static Cost cost_of(const Model& model, size_t kv_element_bytes) {
    const ModelConfig& c = model.config;
    Cost cost;
    std::set<std::string> seen;
    const auto visit = [&](Slot slot, const Expression& expression) {
        for (const auto& name : tensors_of(expression)) {
            if (!seen.insert(name).second) continue;
            const Tensor& tensor = model.tensor(name);
            cost.parameters += static_cast<uint64_t>(tensor.elements());
            cost.bytes += tensor.bytes();
        }
        if (is_matrix(slot)) {
            const SlotShape shape = slot_shape(slot, c);
            cost.flops_per_token += 2 * static_cast<uint64_t>(shape.in * shape.out);
        }
    };
    for (const auto& slots : model.topology.positions) {
        for (const auto& [slot, expression] : slots) visit(slot, expression);
        cost.kv_bytes_per_token += 2 * static_cast<uint64_t>(c.n_head_kv * c.head_dim) * kv_element_bytes;
        cost.attention_flops_per_context_token += 4 * static_cast<uint64_t>(c.n_head * c.head_dim);
    }
    for (const auto& [slot, expression] : model.topology.globals) visit(slot, expression);
    return cost;
}

Accounting account(const Model& model, size_t kv_element_bytes) {
    const Cost own = cost_of(model, kv_element_bytes);
    return {own, model.has_sharing() ? cost_of(without_sharing(model), kv_element_bytes) : own};
}

}  // namespace refold
