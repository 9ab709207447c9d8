// Element types of stored tensors: ggml's types under ggml's names. This header hides ggml itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace refold {

// Values equal ggml's type ids in GGUF files; only types for which is_supported() holds appear in a Model.
enum class DType : uint32_t {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    IQ1_M = 29,
    BF16 = 30,
    MXFP4 = 39,
};

// True when ggml can convert type id `id` to floats (all its quantized types, no integer types).
bool is_supported(uint32_t id);
// Upper-case name as in llama.cpp's file names: "Q4_1".
std::string name(DType type);
// Elements per block (1 for float types) and bytes per block.
int64_t block_elements(DType type);
size_t block_bytes(DType type);
inline bool is_float(DType type) { return block_elements(type) == 1; }
// Bytes of a row; `elements` must be a multiple of block_elements().
size_t row_bytes(DType type, int64_t elements);
// Rows that are no whole blocks are folded: so many of them follow each other in whole blocks, some of which
// hold the end of one row and the beginning of the next. 1 for rows of whole blocks.
int64_t fold(DType type, int64_t row_elements);

// Unpacks out.size() elements of `data`. Throws Error(input) when the sizes do not fit.
void dequantize(DType type, std::span<const std::byte> data, std::span<float> out);
// The type cannot be written without an importance matrix (IQ1 and IQ2).
bool needs_importance(DType type);
// Packs rows of `row_elements` elements, a multiple of fold() rows, rounded to nearest, by `threads` threads.
// `importance` [row_elements], the weights of the columns' squared errors (llama.cpp's importance matrix),
// guides the search for scales; empty: all the same. Blocks of Q4_0 to Q5_1 take plain rounding where its
// weighted error is smaller. Throws Error(unsupported) when the type needs an importance and there is none.
std::vector<std::byte> quantize(DType type, std::span<const float> values, int64_t row_elements,
                                std::span<const float> importance = {}, int threads = 1);

}  // namespace refold
