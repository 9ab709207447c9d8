// Kernels of Panels (panels.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/ggml/panels.h"

namespace refold::kernels {

// `columns` counts single numbers, also where they are pairs of BF16. Only the first `rows` rows of the
// panels from the beginning of y on are written. Panel i is `panel_bytes` times i after `weights`, and the
// first of its rows is row 16 * i of y.
struct PanelProduct {
    const std::byte* weights;
    size_t panel_bytes;
    Panels::Range range;
    int64_t columns;
    int64_t rows;  // of y
    Panels::Input x;
    float* y;
    int64_t y_stride;
    bool add;
};

void multiply_panels(PanelType type, const PanelProduct& product);

// Whether this CPU has products of BF16 pairs (AVX512_BF16), and its level (engine/cpu_level.h) lets them be
// used.
bool has_bf16_pairs();
// Rounds `columns` floats to pairs [(columns + 1) / 2]; an odd end is filled up with zero.
void to_bf16_pairs(const float* x, int64_t columns, uint32_t* pairs);
void multiply_bf16_pairs(const PanelProduct& product);

}  // namespace refold::kernels
