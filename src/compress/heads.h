// Rewriting which heads positions have: sharing them, and leaving them out.
#pragma once

#include <set>
#include <vector>

#include "compress/cut.h"
#include "compress/matching.h"
#include "compress/units.h"

namespace refold {

// Rewrites the expressions of `slots` so that every replaced unit, and every other that has the same weights,
// takes its source's weights of `model`; tensors lose the heads that nobody uses. Biases of a replaced unit
// become those of its source.
Model share_heads(const Model& model, const std::vector<Replacement>& replacements,
                  const std::vector<Slot>& slots, std::vector<Requantised>& requantised);

// The model without these units and all that have the same weights: smaller tensors and KV cache,
// ModelConfig::heads_kv. A position that loses all its units loses its attention.
Model drop_heads(const Model& model, const std::set<Unit>& units, std::vector<Requantised>& requantised);

// The model whose attn.o of a position consists of these heads, some of them of a new tensor; stored tensors
// lose the heads that nobody uses any more.
Model with_output_heads(const Model& model, size_t position, const std::vector<HeadRef>& heads,
                        std::vector<Requantised>& requantised);

}  // namespace refold
