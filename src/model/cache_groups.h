// Which positions' cached keys and values belong together, so that a row leaves all of them or none.
#pragma once

#include "model/model.h"

namespace refold {

// The position with the keys that this position's probabilities are of: its own, or its source's.
size_t key_position(const Topology& topology, size_t position);

// Whether rows of the position's cache may be evicted: not without attention, and not where a position that
// reads the same keys has a window, which counts rows.
bool evictable(const Model& model, size_t position);

}  // namespace refold
