// DirectShare: attention heads that resemble a head of an earlier layer take over its weights.
// "Head-wise Shareable Attention for Large Language Models", section 4 and appendix A (Algorithms 1 and 2).
#pragma once

#include <vector>

#include "compress/matching.h"
#include "compress/method.h"
#include "compress/similarity.h"

namespace refold {

extern const Method kDirectShare;

namespace direct_share {

// Algorithm 1 by the cosine of the concatenated rows of `on` (attn.q, attn.k, attn.v), for the units of all
// positions after the first. A unit whose weights in `shared` are already those of an earlier unit counts as
// that unit: it is neither replaced nor offered. For tests and benchmarks. Throws as best_matches() does.
std::vector<Match> best_matches(const Model& model, const std::vector<Slot>& on,
                                const std::vector<Slot>& shared, const MatchMemory& memory = {});

}  // namespace direct_share
}  // namespace refold
