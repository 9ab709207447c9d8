// Weights of models whose predictions tell something about errors.
#pragma once

#include "compress/calibrated.h"

namespace refold {

// Small logits, as a distribution with one likely token alone tells nothing about errors.
inline float with_flat_logits(size_t layer, Slot slot, int64_t row, int64_t column) {
    const bool table = slot == Slot::token_embd || slot == Slot::output;
    return (table ? 0.1F : 1.0F) * scattered_small(layer, slot, row, column);
}

}  // namespace refold
