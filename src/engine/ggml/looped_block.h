// A looped model as one block and what each loop has of its own.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "model/model.h"

namespace refold {

// A layer of the block, counted from 0, and a slot of it.
using BlockSlot = std::pair<size_t, Slot>;

struct LoopedBlock {
    // One loop as a model. Where loops differ, it has the base of their LoRA, the first loop's norms and no
    // biases.
    Model block;
    int64_t loops = 1;
    // By loop: LoRA of matrices, and exit maps of the block's last layer; nullopt for loops without.
    std::map<BlockSlot, std::vector<std::optional<LowRank>>> terms;
    // By loop: norms and biases that are not the same in all loops.
    std::map<BlockSlot, std::vector<Expression>> vectors;
};

// Throws Error(unsupported), naming slot and layer, for loops that differ in anything else.
LoopedBlock looped_block(const Model& model);

}  // namespace refold
