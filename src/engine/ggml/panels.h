// Products with small matrices that lie in panels: sixteen rows side by side, column by column, so that a
// vector of weights meets a broadcast input and nothing is summed across lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/ggml/q8_kernels.h"

namespace refold {

enum class PanelType {
    f32,
    f16,   // weights only: inputs stay float32
    bf16,  // inputs too where the CPU multiplies pairs of bfloat16, as ggml does
    q8,    // weights and inputs in Q8_0's blocks, as ggml does; where q8::available()
};

class Panels {
public:
    static constexpr int64_t kRows = 16;  // of a panel; the matrix is filled up with zero rows

    Panels() = default;
    // `matrix` [rows][columns]; for q8 whole blocks of columns.
    Panels(PanelType type, std::span<const float> matrix, int64_t rows, int64_t columns);

    PanelType type() const { return type_; }
    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    int64_t panels() const { return (rows_ + kRows - 1) / kRows; }
    size_t bytes() const { return static_cast<size_t>(panels()) * panel_bytes(); }
    // Inputs of `tokens` tokens that begin `stride` floats apart, as products of this type want them.
    struct Input {
        const float* floats;
        const uint32_t* pairs;  // of bfloat16; null where others are wanted
        int64_t stride, tokens;
        q8::Tokens quantised = {};  // for q8
    };
    struct Scratch {
        std::vector<uint32_t> pairs;
        q8::QuantisedTokens quantised;
    };
    // Valid as long as x and `scratch`.
    Input input(const float* x, int64_t stride, int64_t tokens, Scratch& scratch) const;

    // y = W x, or y += W x, of tokens that begin `stride` floats apart in y; of the rows of panels
    // [first, last). Rows that fill up the last panel are written too unless they are to be added.
    struct Range {
        int64_t first, last;
    };
    void multiply(const Input& x, Range range, float* y, int64_t stride, bool add) const;
    Range all() const { return {0, panels()}; }

private:
    size_t panel_bytes() const;

    PanelType type_ = PanelType::f32;
    int64_t rows_ = 0, columns_ = 0;
    std::shared_ptr<const std::byte[]> data_;
};

}  // namespace refold
