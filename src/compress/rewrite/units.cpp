#include "compress/rewrite/units.h"

#include <algorithm>

#include "compress/method/selection.h"
#include "core/error.h"

namespace refold {
namespace {

bool is_stored(const Expression& expression) {
    return std::holds_alternative<Dense>(expression) || std::holds_alternative<Heads>(expression);
}

HeadRefs refs_of(const Model& model, size_t layer, Slot slot) {
    const Expression& expression = model.topology.at(layer, slot);
    if (const auto* heads = std::get_if<Heads>(&expression)) return expand(*heads);
    const std::string& tensor = std::get<Dense>(expression).tensor;
    return expand(Heads{{{tensor, 0, stored_heads(model.tensor(tensor), slot, model.config)}}});
}

}  // namespace

int64_t heads_per_unit(Slot slot, const ModelConfig& config) {
    return has_query_heads(slot) ? config.q_per_kv() : 1;
}

int64_t stored_heads(const Tensor& tensor, Slot slot, const ModelConfig& config) {
    return (heads_are_columns(slot) ? tensor.row_elements() : tensor.rows()) / config.head_dim;
}

size_t count_head_units(const Model& model) {
    int64_t units = 0;
    const auto all = parse_layers("all", model.topology.layers.size());
    for (const auto& tied : tied_layers(model, all, kQkvo)) units += model.config.n_head_kv_of(tied[0]);
    return static_cast<size_t>(units);
}

void need_stored(const Model& model, const std::vector<Slot>& slots, const std::vector<size_t>& layers,
                 const char* method) {
    for (const size_t p : layers) {
        for (const Slot slot : slots) {
            if (!model.topology.has(p, slot) || is_stored(model.topology.at(p, slot))) continue;
            fail(ErrorCode::unsupported, method,
                 "layer {}: {} is made of factors (a low-rank or Tucker step came before), so it has no "
                 "weights of its own to work on - leave the layer out with 'layers', or do this step first",
                 p, slot_name(slot));
        }
    }
}

HeadUnits::HeadUnits(const Model& model, const std::vector<Slot>& slots, const std::vector<Slot>& same)
    : config_(model.config), same_(same), refs_(model.topology.layers.size()) {
    for (size_t p = 0; p < refs_.size(); ++p) {
        const bool usable = std::all_of(slots.begin(), slots.end(), [&](Slot slot) {
            return model.topology.has(p, slot) && is_stored(model.topology.at(p, slot));
        });
        if (!usable) continue;
        for (const Slot slot : slots) refs_[p][slot] = refs_of(model, p, slot);
        for (int64_t u = 0; u < config_.n_head_kv_of(p); ++u) {
            auto& units = by_key_[key({p, u})];
            if (units.empty()) stored_.push_back({p, u});
            units.push_back({p, u});
        }
    }
}

bool HeadUnits::lies_in(Unit unit, const std::set<size_t>& layers) const {
    const auto& units = equal(unit);
    return std::all_of(units.begin(), units.end(), [&](const Unit& u) { return layers.contains(u.layer); });
}

HeadRefs HeadUnits::heads_of(Unit unit, Slot slot) const {
    const int64_t n = heads_per_unit(slot, config_);
    const auto first = refs_[unit.layer].at(slot).begin() + unit.index * n;
    return {first, first + n};
}

HeadUnits::Key HeadUnits::key(Unit unit) const {
    Key key;
    for (const Slot slot : same_) {
        for (const HeadRef& ref : heads_of(unit, slot)) key.emplace_back(ref.tensor, ref.head);
    }
    return key;
}

}  // namespace refold
