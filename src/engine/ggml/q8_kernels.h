// Inner loops of products of Q8_0 weights with many tokens, by AVX-512 VNNI: sixteen rows of the weight at a
// time, in bytes as vpdpbusd takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace refold::q8 {

constexpr int64_t kPanelRows = 16;
constexpr int64_t kBlock = 32;  // numbers of a Q8_0 block

// This build and this CPU have them.
bool available();

// Rows of activations, quantised as ggml does for Q8_0.
struct Tokens {
    const int8_t* quants;    // [token][blocks * kBlock]
    const float* scales;     // [token][blocks]
    const int32_t* offsets;  // [token][blocks]: -128 times the sum of a block's quants
    int64_t blocks;
};

// What Tokens refers to; as ggml quantises.
class QuantisedTokens {
public:
    // Makes room for `tokens` tokens of `blocks` blocks.
    void fit(int64_t tokens, int64_t blocks);
    // Of `x`, whose tokens begin `stride` floats apart, tokens [first, last). Threads may take parts each.
    void quantise(const float* x, int64_t stride, int64_t first, int64_t last);
    Tokens tokens() const { return {quants_.data(), scales_.data(), offsets_.data(), blocks_}; }
    uint64_t bytes() const {
        return quants_.size() + scales_.size() * sizeof(float) + offsets_.size() * sizeof(int32_t);
    }

private:
    int64_t blocks_ = 0;  // of a token
    std::vector<int8_t> quants_;
    std::vector<float> scales_;
    std::vector<int32_t> offsets_;
};

// Of sixteen rows, in as many bytes as they have as Q8_0: the scales of all blocks, sixteen half floats each,
// then their quants plus 128 in groups of four columns, row by row.
constexpr size_t panel_bytes(int64_t blocks) {
    return static_cast<size_t>(blocks * kPanelRows) * (sizeof(uint16_t) + static_cast<size_t>(kBlock));
}
// `count` rows of Q8_0 blocks, `stride` bytes apart; the others of the panel are zeros.
void pack_panel(const std::byte* rows, size_t stride, int64_t count, int64_t blocks, std::byte* panel);

// Panels of `count` rows, one behind the other.
void pack_panels(const std::byte* rows, size_t stride, int64_t count, int64_t blocks, std::byte* panels);
// Row `row` of a panel as floats, `blocks` * kBlock of them.
void unpack_row(const std::byte* panel, int64_t row, int64_t blocks, float* out);

// out[token * stride + row] becomes the product, or more by it, for `count` tokens from `first` on and `rows`
// rows of the panel.
struct PanelOutput {
    float* data;
    size_t stride;
    int64_t rows;
    bool add = false;
};
void multiply_panel(const std::byte* panel, const Tokens& tokens, int64_t first, int64_t count,
                    const PanelOutput& out);

}  // namespace refold::q8
