// Algorithm 1 of "Head-wise Shareable Attention for Large Language Models" for the heads of a model.
#pragma once

#include <vector>

#include "compress/head_sharing/matching.h"
#include "compress/head_sharing/similarity.h"
#include "compress/rewrite/units.h"

namespace refold {

// Both lists, each slot once, in the order of the enumeration.
std::vector<Slot> union_of(const std::vector<Slot>& a, const std::vector<Slot>& b);

// best_matches() of `units` by the cosine of the concatenated rows of the slots `on` (attn.q, attn.k,
// attn.v).
std::vector<Match> best_head_matches(const Model& model, const HeadUnits& units, const std::vector<Slot>& on,
                                     const std::vector<bool>& replaceable, const MatchMemory& memory = {});

// The same for the units of all layers after the first. A unit whose weights in the slots `shared` are
// already those of an earlier unit counts as that unit: it is neither replaced nor offered.
std::vector<Match> best_head_matches(const Model& model, const std::vector<Slot>& on,
                                     const std::vector<Slot>& shared, const MatchMemory& memory = {});

}  // namespace refold
