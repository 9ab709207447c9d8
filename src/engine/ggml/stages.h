// A looped model as one block: what its loops have in common, once, and where they differ.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "model/model.h"

namespace refold {

// A place of the block: position within it, and slot.
using BlockPlace = std::pair<size_t, Slot>;

struct StagedModel {
    // One loop as a model of its own. Where loops differ it has the base of their LoRA, the first loop's
    // norms and no biases.
    Model block;
    int64_t loops = 1;
    // LoRA of matrices, and exit maps of the block's last position, by loop; none where a loop has none
    // there.
    std::map<BlockPlace, std::vector<std::optional<LowRank>>> terms;
    // Norms, their biases and those of matrices that are not the same in all loops.
    std::map<BlockPlace, std::vector<Expression>> vectors;
};

// Throws Error(unsupported), naming slot and position, for loops that differ in anything else.
StagedModel staged_model(const Model& model);

}  // namespace refold
