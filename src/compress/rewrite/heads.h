// Rewriting the heads of layers: sharing them and leaving them out.
#pragma once

#include <set>
#include <vector>

#include "compress/rewrite/cut.h"
#include "compress/rewrite/units.h"

namespace refold {

// `unit` takes the weights of `source`.
struct Replacement {
    Unit unit, source;
    bool operator==(const Replacement&) const = default;
};

// Every replaced unit, and every unit with the same stored weights, takes over the weights that its source
// has in `model`, in `slots`. Tensors lose the heads that no layer uses any more. Biases of a replaced unit
// become those of its source.
Model share_heads(const Model& model, const std::vector<Replacement>& replacements,
                  const std::vector<Slot>& slots, std::vector<Requantized>& requantized);

// Unit u of the layer has the weights in attn.q, attn.k and attn.v, and their biases, that units[u] has in
// `model`. For running this layer: nothing else changes, and no tensor becomes smaller.
Model with_heads_of(const Model& model, size_t layer, const std::vector<Unit>& units);

// The model without these units and those with the same stored weights: tensors and KV cache become smaller
// (ModelConfig::heads_kv). A layer that loses all its units loses its attention.
Model drop_heads(const Model& model, const std::set<Unit>& units, std::vector<Requantized>& requantized);

// attn.o of the layer consists of these heads from now on, some of them of a new tensor. Tensors lose the
// heads that no layer uses any more.
Model with_output_heads(const Model& model, size_t layer, const std::vector<HeadRef>& heads,
                        std::vector<Requantized>& requantized);

}  // namespace refold
