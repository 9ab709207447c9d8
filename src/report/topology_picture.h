// The origin of every weight of a model, as data and as a picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

// One head of a slot, or the whole slot if it has no heads.
struct TopologyCell {
    size_t layer = 0;       // layer that owns the weights; its own layer when nothing is borrowed
    int64_t head = -1;      // head of that layer; -1: the whole slot, or weights that the owner does not use
    int64_t borrowers = 0;  // number of other cells that use this cell's weights
};

// The cells of one slot of one layer, in the order of the layer's heads; empty when the layer lacks the slot.
using TopologyCells = std::vector<TopologyCell>;

// Factors of a slot, in addition to stored matrices or instead of them.
struct SlotFactors {
    bool instead = false;  // low rank or Tucker, without a stored matrix
    std::string text;      // "low rank 57", "Tucker 288 x 32 x 4", "LoRA 64"; empty: stored matrices only
};

struct TopologyMap {
    std::vector<Slot> slots;                          // the weight matrices that layers have
    std::vector<std::vector<TopologyCells>> rows;     // [layer][slot]
    std::vector<std::vector<SlotFactors>> factors{};  // [layer][slot]
    int64_t loops = 1;                                // Topology::loops
    std::vector<AttentionSource> sources{};           // [layer]: source of its attention
    // True when the layer lacks the slot because its attention comes from another layer.
    bool replaced(size_t layer, size_t slot) const;

    // True when the cell does not use weights of its own layer and head.
    bool borrowed(size_t layer, size_t slot, size_t cell) const;
};

// The owner of a stored tensor is the layer that it is named after in the family's naming, otherwise the
// first layer that uses it. Every referenced tensor must exist (see validate()).
TopologyMap topology_map(const Model& model);

// Fills in TopologyCell::borrowers.
void count_borrowers(TopologyMap& map);

// Per layer, the part of the cells of slots that are wanted which is borrowed, 0 to 1; NaN for a layer
// without any.
std::vector<double> borrowed_parts(const TopologyMap& map, bool (*wanted)(Slot));

// "30 layers, no sharing" or "30 layers in 2 loops; 9 with attention probabilities of another; attn.q,
// attn.o: each 27 of 270 heads borrowed (10.0 %); ffn.down: 10 of 30 in factors; ...".
std::string topology_summary(const TopologyMap& map);

// The picture as one SVG element, with layers as rows, heads as cells, and the color of the layer that owns
// the weights. Two bars stand for factors, a dot for a LoRA, a line for weights that another layer's
// attention replaces; hovering shows details. Its colors follow the CSS variables --ink, --muted and --own of
// the page, so it works in any page and as a separate file. `label` is the accessible name.
std::string topology_svg(const TopologyMap& map, const std::string& label);
std::string topology_svg(const Model& model);

}  // namespace refold
