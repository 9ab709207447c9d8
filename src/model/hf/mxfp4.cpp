#include "model/hf/mxfp4.h"

namespace refold::mxfp4 {
namespace {

constexpr size_t kGgmlBytes = 1 + kPackedBytes;
constexpr std::byte kLow{0x0f};

std::byte joined(std::byte low, std::byte high) { return (low & kLow) | (high << 4); }

// Number `i` of a block, in the lower half of the result.
std::byte neighbor(const std::byte* packed, size_t i) {
    const std::byte both = packed[i / 2];
    return i % 2 == 0 ? both & kLow : both >> 4;
}
std::byte strided(const std::byte* packed, size_t i) {
    return i < kPackedBytes ? packed[i] & kLow : packed[i - kPackedBytes] >> 4;
}

}  // namespace

void to_ggml(const std::byte* blocks, const std::byte* scales, int64_t groups, std::byte* row) {
    for (int64_t g = 0; g < groups; ++g, blocks += kPackedBytes, row += kGgmlBytes) {
        row[0] = scales[g];
        for (size_t i = 0; i < kPackedBytes; ++i)
            row[1 + i] = joined(neighbor(blocks, i), neighbor(blocks, i + kPackedBytes));
    }
}

void from_ggml(const std::byte* row, int64_t groups, std::byte* blocks, std::byte* scales) {
    for (int64_t g = 0; g < groups; ++g, blocks += kPackedBytes, row += kGgmlBytes) {
        scales[g] = row[0];
        for (size_t i = 0; i < kPackedBytes; ++i)
            blocks[i] = joined(strided(row + 1, 2 * i), strided(row + 1, 2 * i + 1));
    }
}

}  // namespace refold::mxfp4
