// Inner loops of Panels (panels.h) in the CPU's widest vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/ggml/panels.h"

namespace refold::kernels {

// As Panels::multiply(). `columns` counts numbers, also where they are pairs of bfloat16.
struct PanelProduct {
    const std::byte* weights;
    size_t panel_bytes;
    Panels::Range range;
    int64_t columns, rows;
    Panels::Input x;
    float* y;
    int64_t y_stride;
    bool add;
};

void multiply_panels(PanelType type, const PanelProduct& product);

// Whether this CPU multiplies pairs of bfloat16.
bool has_bf16_pairs();
// `columns` floats as pairs; the last one is filled up with zero.
void to_bf16_pairs(const float* x, int64_t columns, uint32_t* pairs);
void multiply_bf16_pairs(const PanelProduct& product);

}  // namespace refold::kernels
