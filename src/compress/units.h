// What methods share, cut out and measure whole: attention heads, and FFNs.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"

namespace refold {

// A KV group of a position: key/value head `index` with its q_per_kv query heads; without GQA, a head. Or a
// position's FFN, which has index 0.
struct Unit {
    size_t position = 0;
    int64_t index = 0;
    auto operator<=>(const Unit&) const = default;
};

inline const std::vector<Slot> kQkv = {Slot::attn_q, Slot::attn_k, Slot::attn_v};
inline const std::vector<Slot> kQkvo = {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o};

// Heads of a slot that belong to one unit.
int64_t heads_per_unit(Slot slot, const ModelConfig& config);
int64_t stored_heads(const Tensor& tensor, Slot slot, const ModelConfig& config);

// Units of all attention modules; one that several positions have in common (rounds of a loop) counts once.
size_t count_head_units(const Model& model);

// Throws Error(unsupported) when a slot of a position in `layers` is made of factors: such heads are not
// stored. `method` is who asks.
void need_stored(const Model& model, const std::vector<Slot>& slots, const std::vector<size_t>& layers,
                 const char* method);

using HeadRefs = std::vector<HeadRef>;

// The units of a model, and which stored heads they consist of. Positions without attention, and those where
// one of `slots` is made of factors, have none.
class HeadUnits {
public:
    // `same`: units with equal heads in all of these slots are one unit; `slots` holds at least these.
    HeadUnits(const Model& model, const std::vector<Slot>& slots, const std::vector<Slot>& same);

    // The first unit of every set of equal ones, in order of position and index.
    const std::vector<Unit>& stored() const { return stored_; }
    // Every unit that is the same stored weights, itself included.
    const std::vector<Unit>& equal(Unit unit) const { return by_key_.at(key(unit)); }
    // True when all positions that have this unit are among `layers`.
    bool lies_in(Unit unit, const std::set<size_t>& layers) const;

    // The heads of a slot, whether its expression is dense or shared; empty for positions without units.
    using SlotRefs = std::map<Slot, HeadRefs>;
    const std::vector<SlotRefs>& refs() const { return refs_; }
    // The heads of one unit.
    HeadRefs heads_of(Unit unit, Slot slot) const;

private:
    using Key = std::vector<std::pair<std::string, int64_t>>;
    Key key(Unit unit) const;

    ModelConfig config_;
    std::vector<Slot> same_;
    std::vector<SlotRefs> refs_;  // per position
    std::map<Key, std::vector<Unit>> by_key_;
    std::vector<Unit> stored_;
};

}  // namespace refold
