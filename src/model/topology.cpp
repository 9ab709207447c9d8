#include "model/topology.h"

#include <algorithm>

#include "core/error.h"

namespace refold {
std::vector<HeadRef> expand(const Heads& heads) {
    std::vector<HeadRef> out;
    for (const auto& run : heads.runs) {
        for (int64_t h = 0; h < run.count; ++h) out.push_back({run.tensor, run.first + h});
    }
    return out;
}

Heads collapse(const std::vector<HeadRef>& heads) {
    Heads out;
    for (const auto& ref : heads) {
        if (!out.runs.empty()) {
            auto& last = out.runs.back();
            if (last.tensor == ref.tensor && last.first + last.count == ref.head) {
                ++last.count;
                continue;
            }
        }
        out.runs.push_back({ref.tensor, ref.head, 1});
    }
    return out;
}

std::vector<std::string> tensors_of(const Expression& expression) {
    std::vector<std::string> names;
    const auto add = [&](const std::string& name) {
        if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end())
            names.push_back(name);
    };
    const auto visit = [&](const auto& self, const auto& e) -> void {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, Dense>) {
            add(e.tensor);
        } else if constexpr (std::is_same_v<E, Heads>) {
            for (const auto& run : e.runs) add(run.tensor);
        } else if constexpr (std::is_same_v<E, LowRank>) {
            for (const auto& name : {e.u, e.v, e.scale}) add(name);
        } else if constexpr (std::is_same_v<E, Tucker>) {
            for (const auto& name : {e.core, e.model, e.head, e.roles}) add(name);
        } else if constexpr (std::is_same_v<E, RowParts>) {
            for (const auto& name : e.parts) add(name);
            add(e.ids);
        } else {
            std::visit([&](const auto& base) { self(self, base); }, e.base);
            self(self, e.term);
        }
    };
    std::visit([&](const auto& e) { visit(visit, e); }, expression);
    return names;
}

bool is_small_factor(const Expression& expression, const std::string& tensor) {
    if (const auto* plus = std::get_if<Plus>(&expression))
        return tensor == plus->term.scale || is_small_factor(base_of(expression), tensor);
    if (const auto* e = std::get_if<LowRank>(&expression)) return tensor == e->scale;
    if (const auto* e = std::get_if<Tucker>(&expression)) return tensor == e->head || tensor == e->roles;
    if (const auto* e = std::get_if<RowParts>(&expression)) return tensor == e->ids;
    return false;
}

Expression base_of(const Expression& expression) {
    const auto* plus = std::get_if<Plus>(&expression);
    if (plus == nullptr) return expression;
    return std::visit([](const auto& base) { return Expression(base); }, plus->base);
}

const Expression& Topology::at(size_t layer, Slot slot) const {
    const auto found = layers.at(layer).find(slot);
    if (found == layers[layer].end()) {
        fail(ErrorCode::internal, "topology", "layer {} has no {}", layer, slot_name(slot));
    }
    return found->second;
}

bool Topology::has(size_t layer, Slot slot) const { return layers.at(layer).contains(slot); }

const AttentionSource& Topology::source(size_t layer) const {
    static const AttentionSource own;
    const auto found = sources.find(layer);
    return found == sources.end() ? own : found->second;
}

bool Topology::lends_probabilities(size_t layer) const {
    return std::any_of(sources.begin(), sources.end(),
                       [&](const auto& entry) { return entry.second.probabilities == layer; });
}

bool Topology::lends_kv(size_t layer) const {
    return std::any_of(sources.begin(), sources.end(),
                       [&](const auto& entry) { return entry.second.kv == layer; });
}

bool Topology::is_replaced(size_t layer, Slot slot) const {
    const AttentionSource& from = source(layer);
    const auto projection = properties(slot).projection;
    if (!projection || *projection == Projection::output) return false;
    if (*projection == Projection::key) return !from.own();
    return *projection == Projection::query ? from.probabilities.has_value() : from.kv.has_value();
}

size_t Topology::stored_layers() const {
    std::map<std::pair<Slot, std::string>, std::vector<Expression>> seen;  // by slot and first tensor
    size_t count = 0;
    for (const Slots& slots : layers) {
        bool is_new = false;
        for (const auto& [slot, expression] : slots) {
            if (!is_matrix(slot) || properties(slot).origin == SlotOrigin::method) continue;
            const Expression matrix = base_of(expression);
            auto& known = seen[{slot, tensors_of(matrix).front()}];
            if (std::find(known.begin(), known.end(), matrix) != known.end()) continue;
            known.push_back(matrix);
            is_new = true;
        }
        count += is_new ? 1 : 0;
    }
    return count;
}

}  // namespace refold
