// Layers that read the same cached keys: a row is evicted for all of them or none.
#pragma once

#include "model/model.h"

namespace refold {

// The layer whose keys this layer's probabilities come from: itself, or its source.
size_t key_layer(const Topology& topology, size_t layer);

// Rows of the layer's cache may be evicted: it has attention, and no layer that reads the same keys has a
// window, as windows count rows.
bool evictable(const Model& model, size_t layer);

}  // namespace refold
