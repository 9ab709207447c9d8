// Where every weight of a model comes from, as data and as a picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

// One head of a slot, or the whole slot where it has no heads.
struct TopologyCell {
    size_t position = 0;  // whose weights it uses; its own position when nothing is borrowed
    int64_t head = -1;    // the head there; -1: the whole slot, or weights that the owner itself does not use
    int64_t borrowers = 0;  // cells of other places that use the weights which this one owns
};

// The cells of one slot of one position, in the order of the position's own heads; empty when it has no such
// slot.
using TopologyCells = std::vector<TopologyCell>;

// What a slot's weights are beside, or instead of, stored matrices.
struct SlotFactors {
    bool instead = false;  // low rank or Tucker: no matrix is stored
    std::string text;      // "low rank 57", "Tucker 288 x 32 x 4", "LoRA 64"; empty: stored matrices only
};

struct TopologyMap {
    std::vector<Slot> slots;                          // the weight matrices that positions have
    std::vector<std::vector<TopologyCells>> rows;     // [position][slot]
    std::vector<std::vector<SlotFactors>> factors{};  // [position][slot]
    int64_t loops = 1;                                // Topology::loops
    std::vector<AttentionSource> sources{};           // [position]: where its attention comes from
    // True when the position has no such slot because its attention comes from another one.
    bool replaced(size_t position, size_t slot) const;

    // True when the cell does not use weights of its own position and head.
    bool borrowed(size_t position, size_t slot, size_t cell) const;
};

// The owner of a stored tensor is the position whose name it has under the family's naming, otherwise the
// first position that uses it. Every referenced tensor must exist (see validate()).
TopologyMap topology_map(const Model& model);

// Fills in TopologyCell::borrowers.
void count_borrowers(TopologyMap& map);

// "30 positions, no sharing" or "30 positions in 2 loops; 9 with attention probabilities of another; attn.q,
// attn.o: each 27 of 270 heads borrowed (10.0 %); ffn.down: 10 of 30 in factors; ...".
std::string topology_summary(const TopologyMap& map);

// The picture as one SVG element: positions as rows, heads as cells, colour = the position the weights come
// from; weights in factors are two bars, a LoRA is a dot in the cell, a line stands for weights that another
// position's attention replaces; hovering gives details. Its colours follow the CSS variables --ink, --muted
// and --own of the page, so it works inside any page and as a file of its own. `label` is the accessible
// name.
std::string topology_svg(const TopologyMap& map, const std::string& label);
std::string topology_svg(const Model& model);

}  // namespace refold
