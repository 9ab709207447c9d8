// Kernels of row panels, by type.
#pragma once

#include <array>

#include "engine/ggml/row_panels.h"

namespace refold::row_panels {

// A panel of sixteen rows: what a block has besides dwords, and its dwords.
struct Panel {
    const std::byte* odd;
    const std::byte* dwords;
};

// A block of a type, of the least whole dwords.
struct Block {
    int64_t numbers;
    size_t bytes;
};
inline Block block_of(ggml_type type) {
    if (type == GGML_TYPE_BF16) return {2, sizeof(uint32_t)};
    return {ggml_blck_size(type), ggml_type_size(type)};
}

// Bytes of a block that are no whole dwords, at its beginning or its end.
struct OddBytes {
    size_t count;
    bool at_end;
};
inline OddBytes odd_bytes(ggml_type type) {
    return {block_of(type).bytes % sizeof(uint32_t), type == GGML_TYPE_Q3_K || type == GGML_TYPE_Q6_K};
}

// A panel as bytes: quants [group][column / 4][16 rows][column % 4], then scales and, where the type has
// them, minimums, F32 [group][1 or 2][16 rows]. A minimum is of a group or of half a group.
struct Unpacked {
    std::byte* quants;
    float* scales;
    float* minimums;
};

struct Product {
    Inputs inputs;
    int64_t first;                // token
    int64_t first_group, groups;  // of kInputGroup columns: those of a row
    int64_t folds;                // rows of the matrix in a stored row, which follow each other
    int64_t rows;                 // of the panel, that are written
    float* data;                  // of the first row
    size_t stride;                // between tokens
    bool add;
};

struct Kernels {
    int scales;    // of a group: 1 or 2
    int minimums;  // of a group: 0 to 2
    void (*unpack)(const Panel& panel, int64_t first_group, int64_t groups, const Unpacked& out);
    // By number of tokens - 1; `ahead`: bytes to what is read next, 0: nothing.
    std::array<void (*)(const Panel& panel, const Product& product, size_t ahead), 8> few;
    std::array<void (*)(const Unpacked& panel, const Product& product), 8> many;
};

// Null where the CPU that the process runs on has none.
const Kernels* kernels_of(ggml_type type);

}  // namespace refold::row_panels
