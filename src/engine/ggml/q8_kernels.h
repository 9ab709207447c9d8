// Products of Q8_0 weights by AVX-512 VNNI: sixteen rows of the weight, a panel, at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace refold::q8 {

constexpr int64_t kPanelRows = 16;
constexpr int64_t kBlock = 32;  // numbers of a Q8_0 block

// Whether this build has the kernels and this CPU their instructions.
bool available();

// Activations, quantized as ggml does for Q8_0.
struct Tokens {
    const int8_t* quants;    // [token][blocks * kBlock]
    const float* scales;     // [token][blocks]
    const int32_t* offsets;  // [token][blocks]: -128 times the sum of a block's quants
    int64_t blocks;
};

// Owns the data of Tokens.
class QuantizedTokens {
public:
    // Allocates for `tokens` tokens of `blocks` blocks.
    void fit(int64_t tokens, int64_t blocks);
    // Quantizes tokens [first, last) of x, which are `stride` floats apart. Threads may share the tokens.
    void quantize(const float* x, int64_t stride, int64_t first, int64_t last);
    Tokens tokens() const { return {quants_.data(), scales_.data(), offsets_.data(), blocks_}; }
    uint64_t bytes() const {
        return quants_.size() + scales_.size() * sizeof(float) + offsets_.size() * sizeof(int32_t);
    }

private:
    int64_t blocks_ = 0;  // per token
    std::vector<int8_t> quants_;
    std::vector<float> scales_;
    std::vector<int32_t> offsets_;
};

// A panel takes as many bytes as its sixteen rows in Q8_0: scales F16 [block][row], then quants + 128 as
// [block][column / 4][row][column % 4].
constexpr size_t panel_bytes(int64_t blocks) {
    return static_cast<size_t>(blocks * kPanelRows) * (sizeof(uint16_t) + static_cast<size_t>(kBlock));
}
// Packs `count` <= kPanelRows rows of Q8_0 blocks, `stride` bytes apart; the other rows of the panel are
// zero.
void pack_panel(const std::byte* rows, size_t stride, int64_t count, int64_t blocks, std::byte* panel);

// Packs `count` rows into consecutive panels.
void pack_panels(const std::byte* rows, size_t stride, int64_t count, int64_t blocks, std::byte* panels);
// Dequantizes row `row` of a panel to out [blocks * kBlock].
void unpack_row(const std::byte* panel, int64_t row, int64_t blocks, float* out);

// data[token * stride + row] is set to the product, or increased by it.
struct PanelOutput {
    float* data;
    size_t stride;
    int64_t rows;  // of the panel, from its first; the others are not written
    bool add = false;
};
// For `count` tokens from `first` on.
void multiply_panel(const std::byte* panel, const Tokens& tokens, int64_t first, int64_t count,
                    const PanelOutput& out);

}  // namespace refold::q8
