#include "compress/rewrite/heads.h"

#include <algorithm>

#include "compress/rewrite/modules.h"

namespace refold {
namespace {

using LayerRefs = std::vector<HeadUnits::SlotRefs>;

// Rewrites one slot of all layers that have `refs`; stored tensors lose the heads that no layer uses.
class SlotRewriter {
public:
    SlotRewriter(Model& model, Slot slot, LayerRefs& refs, std::vector<Requantized>& requantized)
        : model_(model), slot_(slot), refs_(refs), requantized_(requantized) {}

    // `names`: the tensors that the slot consisted of.
    void run(const std::set<std::string>& names) {
        find_used(names);
        for (const auto& name : names) rewrite(name);
        for (size_t p = 0; p < refs_.size(); ++p) {
            const auto found = refs_[p].find(slot_);
            if (found == refs_[p].end() || found->second.empty()) continue;
            renumber(found->second);
            model_.topology.layers[p][slot_] = expression_of(found->second);
        }
    }

private:
    void find_used(const std::set<std::string>& names) {
        for (size_t p = 0; p < refs_.size(); ++p) {
            const auto found = refs_[p].find(slot_);
            if (found != refs_[p].end()) {
                for (const auto& ref : found->second) used_[ref.tensor].insert(ref.head);
            }
            // A tensor that is also used elsewhere, under a LoRA for instance, stays whole.
            for (const auto& [slot, expression] : model_.topology.layers[p]) {
                if (slot == slot_ && found != refs_[p].end()) continue;
                for (const auto& name : tensors_of(expression)) {
                    if (names.contains(name)) use_all(name);
                }
            }
        }
    }

    void use_all(const std::string& name) {
        const int64_t heads = stored_heads(model_.tensor(name), slot_, model_.config);
        for (int64_t h = 0; h < heads; ++h) used_[name].insert(h);
    }

    void rewrite(const std::string& name) {
        const Tensor tensor = model_.tensor(name);
        const Cut cut{
            heads_are_columns(slot_), model_.config.head_dim, {used_[name].begin(), used_[name].end()}};
        if (cut.kept.empty()) {
            model_.tensors.erase(name);
            return;
        }
        const DType type =
            cuts_blocks(name, tensor.type) ? requantized_type(model_.config.head_dim) : tensor.type;
        const auto stored = static_cast<size_t>(stored_heads(tensor, slot_, model_.config));
        if (type == tensor.type && cut.kept.size() == stored) return;
        for (size_t i = 0; i < cut.kept.size(); ++i) renumbered_[name][cut.kept[i]] = static_cast<int64_t>(i);
        Tensor rest = keep_parts(model_, tensor, cut, type);
        if (type != tensor.type) {
            requantized_.push_back(
                {name, tensor.type, type, tensor.bytes() / stored * cut.kept.size(), rest.bytes()});
        }
        model_.tensors[name] = std::move(rest);
    }

    // True when a layer uses columns of the tensor that do not start and end at a quantization block.
    bool cuts_blocks(const std::string& name, DType type) const {
        if (!heads_are_columns(slot_)) return false;
        const int64_t block = block_elements(type), head_dim = model_.config.head_dim;
        for (const auto& layer : refs_) {
            const auto found = layer.find(slot_);
            if (found == layer.end()) continue;
            for (const auto& run : collapse(found->second).runs) {
                if (run.tensor == name &&
                    (run.first * head_dim % block != 0 || run.count * head_dim % block != 0))
                    return true;
            }
        }
        return false;
    }

    void renumber(HeadRefs& heads) const {
        for (auto& ref : heads) {
            if (const auto found = renumbered_.find(ref.tensor); found != renumbered_.end())
                ref.head = found->second.at(ref.head);
        }
    }

    // Dense where the heads are a whole tensor in order: the expression of a layer that shares nothing.
    Expression expression_of(const HeadRefs& refs) const {
        Heads heads = collapse(refs);
        const HeadRun& first = heads.runs.front();
        const bool whole = heads.runs.size() == 1 && first.first == 0 &&
                           first.count == stored_heads(model_.tensor(first.tensor), slot_, model_.config);
        if (whole) return Dense{first.tensor};
        return heads;
    }

    Model& model_;
    Slot slot_;
    LayerRefs& refs_;
    std::vector<Requantized>& requantized_;
    std::map<std::string, std::set<int64_t>> used_;
    std::map<std::string, std::map<int64_t, int64_t>> renumbered_;
};

void rewrite_slots(Model& model, const std::vector<Slot>& slots, const LayerRefs& before, LayerRefs& refs,
                   std::vector<Requantized>& requantized) {
    for (const Slot slot : slots) {
        std::set<std::string> names;
        for (const auto& layer : before) {
            const auto found = layer.find(slot);
            if (found == layer.end()) continue;
            for (const auto& ref : found->second) names.insert(ref.tensor);
        }
        SlotRewriter(model, slot, refs, requantized).run(names);
    }
}

// The elements of one unit in a vector with `width` elements per unit.
Columns columns_of(const Model& model, Slot slot, Unit unit, int64_t width) {
    return {std::get<Dense>(model.topology.at(unit.layer, slot)).tensor, unit.index * width, width};
}

// Biases and gains of heads are stored whole: a layer with replaced units gets a vector of its own.
void share_vector(Model& model, const Model& original, Slot vector, const std::map<Unit, Unit>& source) {
    const int64_t width = heads_per_unit(vector, model.config) * model.config.head_dim;
    std::map<size_t, std::vector<Columns>> columns;
    for (const auto& [unit, from] : source) {
        const size_t p = unit.layer;
        if (!original.topology.has(p, vector) || !original.topology.has(from.layer, vector)) continue;
        auto& own = columns[p];
        for (int64_t u = 0; own.size() < static_cast<size_t>(model.config.n_head_kv_of(p)); ++u)
            own.push_back(columns_of(original, vector, {p, u}, width));
        own[static_cast<size_t>(unit.index)] = columns_of(original, vector, from, width);
    }
    set_columns(model, vector, columns);
}

// Biases, gains and prefixes whose elements belong to heads.
constexpr auto kHeadVectors = slots_where([](const SlotProperties& s) {
    return s.kind != SlotKind::matrix && s.units && unit_extent(s.slot) != Extent::n_ff;
});

// Replaced units of a matrix take their elements of its bias, and of the gain of its norm, along.
void share_vectors(Model& model, const Model& original, Slot matrix, const std::map<Unit, Unit>& source) {
    for (const Slot vector : kHeadVectors) {
        if (!is_prefix(vector) && properties(vector).projection == properties(matrix).projection)
            share_vector(model, original, vector, source);
    }
}

using KeptUnits = std::map<size_t, std::vector<int64_t>>;  // layer -> indices

void cut_vectors(Model& model, const KeptUnits& kept) {
    std::vector<Slot> vectors = to_vector(kHeadVectors);
    vectors.push_back(Slot::attn_sinks);
    for (const Slot slot : vectors) {
        const int64_t width = slot == Slot::attn_sinks
                                  ? model.config.q_per_kv()
                                  : heads_per_unit(slot, model.config) * model.config.head_dim;
        std::map<size_t, std::vector<Columns>> columns;
        for (const auto& [p, units] : kept) {
            if (units.empty() || !model.topology.has(p, slot)) continue;
            for (const int64_t u : units) columns[p].push_back(columns_of(model, slot, {p, u}, width));
        }
        set_columns(model, slot, columns);
    }
}

}  // namespace

Model share_heads(const Model& model, const std::vector<Replacement>& replacements,
                  const std::vector<Slot>& slots, std::vector<Requantized>& requantized) {
    Model out = model;
    if (replacements.empty()) return out;
    const HeadUnits units(model, slots, slots);
    std::map<Unit, Unit> source;
    for (const auto& [unit, from] : replacements) {
        for (const Unit& same : units.equal(unit)) source[same] = from;
    }
    LayerRefs refs = units.refs();
    for (const auto& [unit, from] : source) {
        for (const Slot slot : slots) {
            const HeadRefs heads = units.heads_of(from, slot);
            std::copy(heads.begin(), heads.end(),
                      refs[unit.layer].at(slot).begin() + unit.index * static_cast<int64_t>(heads.size()));
        }
    }
    rewrite_slots(out, slots, units.refs(), refs, requantized);
    for (const Slot slot : slots) {
        if (!heads_are_columns(slot)) share_vectors(out, model, slot, source);
    }
    return out;
}

Model with_heads_of(const Model& model, size_t layer, const std::vector<Unit>& units) {
    Model out = model;
    const HeadUnits all(model, kQkv, kQkv);
    std::map<Unit, Unit> source;
    for (size_t u = 0; u < units.size(); ++u) source[{layer, static_cast<int64_t>(u)}] = units[u];
    for (const Slot slot : kQkv) {
        HeadRefs heads;
        for (const Unit& unit : units) {
            const HeadRefs own = all.heads_of(unit, slot);
            heads.insert(heads.end(), own.begin(), own.end());
        }
        out.topology.layers[layer][slot] = collapse(heads);
        share_vectors(out, model, slot, source);
    }
    return out;
}

Model with_output_heads(const Model& model, size_t layer, const std::vector<HeadRef>& heads,
                        std::vector<Requantized>& requantized) {
    Model out = model;
    const std::vector<Slot> slots = {Slot::attn_o};
    const HeadUnits units(model, slots, slots);
    LayerRefs refs = units.refs();
    refs[layer].at(Slot::attn_o) = heads;
    rewrite_slots(out, slots, units.refs(), refs, requantized);
    return out;
}

Model drop_heads(const Model& model, const std::set<Unit>& units, std::vector<Requantized>& requantized) {
    Model out = model;
    if (units.empty()) return out;
    const HeadUnits all(model, kQkvo, kQkvo);
    std::set<Unit> dropped;
    for (const Unit& unit : units) dropped.insert(all.equal(unit).begin(), all.equal(unit).end());
    KeptUnits kept;
    for (const Unit& unit : dropped) kept[unit.layer];
    LayerRefs refs = all.refs();
    for (auto& [p, indices] : kept) {
        for (auto& [slot, heads] : refs[p]) heads.clear();
        for (int64_t u = 0; u < model.config.n_head_kv_of(p); ++u) {
            if (dropped.contains({p, u})) continue;
            indices.push_back(u);
            for (auto& [slot, heads] : refs[p]) {
                const HeadRefs own = all.heads_of({p, u}, slot);
                heads.insert(heads.end(), own.begin(), own.end());
            }
        }
    }
    rewrite_slots(out, kQkvo, all.refs(), refs, requantized);
    cut_vectors(out, kept);
    for (const auto& [p, indices] : kept) {
        if (indices.empty()) {
            remove_attention(out, p);
        } else {
            keep_heads_kv(out, p, indices);
        }
    }
    out.drop_unreferenced();
    return out;
}

}  // namespace refold
