#include "model/cache_groups.h"

namespace refold {

size_t key_layer(const Topology& topology, size_t layer) { return topology.source(layer).from(layer); }

bool evictable(const Model& model, size_t layer) {
    const Topology& topology = model.topology;
    if (!topology.has(layer, Slot::attn_o)) return false;
    const size_t keys = key_layer(topology, layer);
    for (size_t l = 0; l < topology.layers.size(); ++l) {
        // Given probabilities have their source's window.
        const bool reads = topology.has(l, Slot::attn_o) && !topology.source(l).probabilities;
        if (reads && key_layer(topology, l) == keys && model.config.window(l) > 0) return false;
    }
    return true;
}

}  // namespace refold
