#include "model/model.h"

#include <set>

#include "core/error.h"

namespace refold {

const Tensor& Model::tensor(const std::string& name) const {
    const auto found = tensors.find(name);
    if (found == tensors.end()) fail(ErrorCode::input, "model", "{}: no tensor '{}'", label, name);
    return found->second;
}

Topology Model::implied() const {
    return implied_topology(*family, config, topology.layers.size(),
                            [&](const std::string& name) { return tensors.contains(name); });
}

template <typename Visit>
static void for_each_expression(const Topology& topology, Visit&& visit) {
    for (const auto& slots : topology.layers) {
        for (const auto& [slot, expression] : slots) visit(slot, expression);
    }
    for (const auto& [slot, expression] : topology.globals) visit(slot, expression);
}

void Model::drop_unreferenced() {
    std::set<std::string> used = unread_tensors(family, config, topology.layers.size());
    for_each_expression(topology, [&](Slot, const Expression& expression) {
        for (const auto& name : tensors_of(expression)) used.insert(name);
    });
    std::erase_if(tensors, [&](const auto& entry) { return !used.contains(entry.first); });
}

bool Model::has_sharing() const {
    if (!config.heads_kv.empty() || !config.ffs.empty() || config.n_prefix > 0) return true;
    if (topology.sources != implied_sources(config, topology.layers.size())) return true;
    for (const auto& [slot, expression] : topology.globals) {
        if (!std::holds_alternative<Dense>(expression) && !std::holds_alternative<RowParts>(expression))
            return true;
    }
    std::set<std::string> seen;
    for (const auto& slots : topology.layers) {
        for (const auto& [slot, expression] : slots) {
            if (!std::holds_alternative<Dense>(expression) || is_compensation(slot)) return true;
            if (!seen.insert(std::get<Dense>(expression).tensor).second) return true;
        }
    }
    return false;
}

}  // namespace refold
