// Superblocks: consecutive layers that use the attention of the first of them (UniAttn, section 3.2;
// cross-layer attention). Choosing them, and the model that has them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "compress/method/method.h"

namespace refold {

using Superblocks = std::vector<LayerRange>;

// "18-21,22-25": first and last layer of each, from 0. The result is ascending. Throws Error(usage) for
// anything else, for layers that the model does not have, a superblock of fewer than two layers, and two that
// overlap.
Superblocks parse_superblocks(const std::string& text, size_t n_layer);

// `count` superblocks of `size` layers, the last one ending with the last layer; 0: as many as fit into the
// top half. Throws Error(usage) when none fits, or fewer than `count`.
Superblocks superblocks_at_end(size_t size, size_t count, size_t n_layer);

// The options `superblocks`, `size` and `count`, and the superblocks that they choose.
std::vector<OptionSpec> superblock_options();
Superblocks superblocks_of(const Options& options, size_t n_layer);

// Similarity of each layer's attention to that of each earlier layer: [layer][earlier layer], row major.
struct LayerSimilarity {
    size_t layers = 0;
    std::vector<double> values;
    double operator()(size_t layer, size_t earlier) const { return values[layer * layers + earlier]; }
};
// The superblocks among `layers` that together have `reusing` layers after their first ones, with the largest
// sum of similarities between these layers and the first of their superblock. Exact, by dynamic programming
// over consecutive layers. `can_share(later, first)`: whether the later layer can use the first one's
// attention. Throws Error(usage) when so many layers cannot reuse.
Superblocks most_similar_superblocks(const LayerSimilarity& similarity, const std::vector<size_t>& layers,
                                     size_t reusing, const std::function<bool(size_t, size_t)>& can_share);

// The layers that are not the first of their superblock.
std::vector<size_t> reusing_layers(const Superblocks& superblocks);

enum class SharedAttention {
    probabilities,  // softmax sharing: no queries, keys and K cache in the reusing layers
    kv,             // cross-layer attention: no keys, values and cache
};
// Throws Error(unsupported) on behalf of `method`, with layer and reason, for an encoder, prefix keys, a
// layer without attention or with another number of heads, and a layer that uses another one's attention or
// lends its own.
void check_can_share(const Model& model, const Superblocks& superblocks, const char* method);
// The model whose reusing layers take their attention from the first layer of their superblock. Checks as
// above.
Model share_attention(const Model& model, const Superblocks& superblocks, SharedAttention what,
                      const char* method);

// For reports: "18-21 (layer 18's), 22-25 (layer 22's)", and [[18, 21], [22, 25]] for JSON.
std::string superblocks_text(const Superblocks& superblocks);
std::vector<std::vector<size_t>> superblocks_list(const Superblocks& superblocks);

}  // namespace refold
