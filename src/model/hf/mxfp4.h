// MXFP4 as gpt-oss's checkpoints store it: for a weight NAME of experts [E, rows, columns] a tensor
// NAME_blocks U8 [E, rows, columns / 32, 16], two numbers a byte, neighbors together, the first one in the
// lower half, and NAME_scales U8 [E, rows, columns / 32], exponents with a bias of 127. Its rows are those of
// linear maps, other than in the checkpoints' BF16 form, which is transposed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace refold::mxfp4 {

constexpr int64_t kBlock = 32;       // numbers
constexpr size_t kPackedBytes = 16;  // of a block in NAME_blocks
constexpr const char* kBlocksSuffix = "_blocks";
constexpr const char* kScalesSuffix = "_scales";

// One row of `groups` blocks, to ggml's block_mxfp4 and back. ggml has the exponent first, then bytes whose
// halves are numbers sixteen apart.
void to_ggml(const std::byte* blocks, const std::byte* scales, int64_t groups, std::byte* row);
void from_ggml(const std::byte* row, int64_t groups, std::byte* blocks, std::byte* scales);

}  // namespace refold::mxfp4
