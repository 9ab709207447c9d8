// Units that methods share, cut out and measure as a whole: KV groups and FFNs.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"

namespace refold {

// A KV group of a layer: key/value head `index` with its q_per_kv query heads (without GQA, a head). Or the
// FFN of a layer, with index 0.
struct Unit {
    size_t layer = 0;
    int64_t index = 0;
    auto operator<=>(const Unit&) const = default;
};

inline const std::vector<Slot> kQkv = to_vector(product_group(Slot::attn_q));
inline const std::vector<Slot> kQkvo =
    to_vector(slots_where([](const SlotProperties& s) { return consists_of_heads(s.slot); }));

// Heads of a slot that belong to one unit.
int64_t heads_per_unit(Slot slot, const ModelConfig& config);
int64_t stored_heads(const Tensor& tensor, Slot slot, const ModelConfig& config);

// KV groups of all attention modules; one that several layers have in common (in a looped model) counts once.
size_t count_head_units(const Model& model);

// Throws Error(unsupported) on behalf of `method` when a slot of one of `layers` is made of factors: its
// heads are not stored.
void need_stored(const Model& model, const std::vector<Slot>& slots, const std::vector<size_t>& layers,
                 const char* method);

using HeadRefs = std::vector<HeadRef>;

// The KV groups of a model and the stored heads that they consist of. Layers without attention, and those
// with factors in one of `slots`, have none.
class HeadUnits {
public:
    // Units with equal heads in all slots of `same`, a subset of `slots`, are one stored unit.
    HeadUnits(const Model& model, const std::vector<Slot>& slots, const std::vector<Slot>& same);

    // The first unit of each set of equal ones, in the order of layer and index.
    const std::vector<Unit>& stored() const { return stored_; }
    // All units with the same stored weights, itself included.
    const std::vector<Unit>& equal(Unit unit) const { return by_key_.at(key(unit)); }
    // True when all layers that have the unit are among `layers`.
    bool lies_in(Unit unit, const std::set<size_t>& layers) const;

    // By layer: the stored heads of each slot, in the order of the layer's own heads. Empty for layers
    // without units.
    using SlotRefs = std::map<Slot, HeadRefs>;
    const std::vector<SlotRefs>& refs() const { return refs_; }
    // The heads of one unit.
    HeadRefs heads_of(Unit unit, Slot slot) const;

private:
    using Key = std::vector<std::pair<std::string, int64_t>>;
    Key key(Unit unit) const;

    ModelConfig config_;
    std::vector<Slot> same_;
    std::vector<SlotRefs> refs_;  // per layer
    std::map<Key, std::vector<Unit>> by_key_;
    std::vector<Unit> stored_;
};

}  // namespace refold
