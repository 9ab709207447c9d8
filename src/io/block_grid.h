// The values that a block of a quantized type can hold once its scales are chosen. Rounding with feedback
// needs them: it chooses the codes of a block one after another, each knowing the errors of those before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "io/dtype.h"

namespace refold {

// Element i of a block holds offset[i] + scale[i] * level(code). The layouts are ggml's (ggml-common.h).
struct BlockGrid {
    DType type;
    int codes;             // number of codes: 16 for four bits
    int first;             // level(code) = first + code, where there is no table
    const int8_t* levels;  // level(code); null: as above
    // The scale and offset of every element of a packed block.
    void (*read_scales)(const std::byte* block, float* scale, float* offset);
    // Writes the codes of all elements and leaves the scales alone.
    void (*write_codes)(std::byte* block, const uint8_t* codes);

    // The code whose value is nearest to x.
    uint8_t nearest(float x, float scale, float offset) const;
    float value(uint8_t code, float scale, float offset) const {
        return offset + scale * static_cast<float>(levels != nullptr ? levels[code] : first + code);
    }
};

// Null for types whose codes stand for several elements at once (IQ1, IQ2, IQ3), and for float types.
const BlockGrid* block_grid(DType type);

}  // namespace refold
