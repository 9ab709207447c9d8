// Superblocks: consecutive layers of which the first one's attention serves all (UniAttn, section 3.2;
// cross-layer attention). Which layers they are, and what a model with them is.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "compress/method.h"

namespace refold {

using Superblocks = std::vector<PositionRange>;

// First layer of the top half: half of the layers, rounded down, lie in it.
size_t top_half(size_t positions);

// parse_layers(), and "top half".
std::vector<size_t> parse_layers_or_half(const std::string& text, size_t positions);

// "18-21,22-25": first and last layer of each, from 0; in ascending order. Throws Error(usage) for anything
// else, for layers that the model does not have, a superblock of fewer than two layers, and two that overlap.
Superblocks parse_superblocks(const std::string& text, size_t positions);

// `count` superblocks of `size` layers that end with the last layer; 0: as many as fit into the top half.
// Throws Error(usage) when none fits, or fewer than `count`.
Superblocks superblocks_at_end(size_t size, size_t count, size_t positions);

// The options `superblocks`, `size` and `count`, and what they say.
std::vector<OptionSpec> superblock_options();
Superblocks superblocks_of(const Options& options, size_t positions);

// How much each layer's attention resembles an earlier one's: [layer][earlier layer], row major.
struct LayerSimilarity {
    size_t layers = 0;
    std::vector<double> values;
    double operator()(size_t layer, size_t earlier) const { return values[layer * layers + earlier]; }
};
// The superblocks among `layers` with `reusing` layers behind a first one, all in all, whose similarities to
// that first one have the largest sum; exact, by dynamic programming over consecutive layers. `can_share`
// tells whether a later layer can do with an earlier one's attention. Throws Error(usage) when there are not
// so many.
Superblocks most_similar_superblocks(const LayerSimilarity& similarity, const std::vector<size_t>& layers,
                                     size_t reusing, const std::function<bool(size_t, size_t)>& can_share);

// Layers that are not the first of their superblock.
std::vector<size_t> reusing_layers(const Superblocks& superblocks);

enum class SharedAttention {
    probabilities,  // softmax sharing: no queries, keys and K cache in the reusing layers
    kv,             // cross-layer attention: no keys, values and cache
};
// Throws Error(unsupported), naming `method`, layer and reason: an encoder, prefix keys, a layer without
// attention or of another number of heads, a layer whose attention is not its own, or that others reuse.
void check_can_share(const Model& model, const Superblocks& superblocks, const char* method);
// The model in which the reusing layers take their attention from the first layer of their superblock. Checks
// as above.
Model share_attention(const Model& model, const Superblocks& superblocks, SharedAttention what,
                      const char* method);

// "18-21 (layer 18's), 22-25 (layer 22's)": for reports, and as JSON [[18, 21], [22, 25]].
std::string superblocks_text(const Superblocks& superblocks);
std::vector<std::vector<size_t>> superblocks_list(const Superblocks& superblocks);
// "4,423,680 parameters and 18.75 % of the KV cache": what `after` has less than `before`.
std::string saving_text(const Model& before, const Model& after);

}  // namespace refold
