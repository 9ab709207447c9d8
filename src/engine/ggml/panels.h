// Small matrices packed into panels of sixteen rows, and their products. Within a panel the rows are
// interleaved, column by column, so that a vector of weights meets a broadcast input and nothing is summed
// across lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/ggml/row_panels.h"

namespace refold {

enum class PanelType {
    f32,
    f16,   // inputs stay F32
    bf16,  // inputs become BF16 as well, as in ggml, where the CPU multiplies pairs of BF16
    q8,    // weights and inputs in Q8_0 blocks, as in ggml; requires row_panels::supports()
};

class Panels {
public:
    static constexpr int64_t kRows = 16;  // of a panel; the last one is filled up with zero rows

    Panels() = default;
    // Packs `matrix` [rows][columns]. For q8 `columns` is a multiple of the block.
    Panels(PanelType type, std::span<const float> matrix, int64_t rows, int64_t columns);

    PanelType type() const { return type_; }
    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    int64_t panels() const { return (rows_ + kRows - 1) / kRows; }
    size_t bytes() const { return static_cast<size_t>(panels()) * panel_bytes(); }
    // Inputs of `tokens` tokens, `stride` elements apart, in the form that products of this type need.
    struct Input {
        const float* floats;
        const uint32_t* pairs;  // of BF16; null: not needed
        int64_t stride, tokens;
        Inputs quantized = {};  // q8 only
    };
    struct Scratch {
        std::vector<uint32_t> pairs;
        QuantizedInputs quantized;
    };
    // x: `tokens` tokens, `stride` floats apart. The result refers to x and `scratch`.
    Input input(const float* x, int64_t stride, int64_t tokens, Scratch& scratch) const;

    // Panels [first, last).
    struct Range {
        int64_t first, last;
    };
    // y = W x, or y += W x if `add`, for the rows of `range`; tokens are `stride` floats apart in y. Without
    // `add` the rows that fill up the last panel are written as well.
    void multiply(const Input& x, Range range, float* y, int64_t stride, bool add) const;
    Range all() const { return {0, panels()}; }

private:
    size_t panel_bytes() const;

    PanelType type_ = PanelType::f32;
    int64_t rows_ = 0, columns_ = 0;
    std::shared_ptr<const std::byte[]> data_;
};

}  // namespace refold
