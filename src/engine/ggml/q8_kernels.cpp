// Products of Q8_0 weights in panels of sixteen rows, by AVX-512 VNNI.
//
// In: a panel [block][16] F16 scales, then [block][column / 4][16 rows][4 columns] bytes (quant + 128);
// tokens as int8 quants [token][column], float scales [token][block], offsets [token][block]. Out: F32
// [token][row]. One thread per panel; the caller splits panels.
//
// vpdpbusd multiplies unsigned by signed bytes: weights are stored as quant + 128, and the offsets, -128
// times the sum of a token's quants in the block, subtract the 128 again. One 64-byte load holds four columns
// of all sixteen rows and meets four broadcast bytes of each of up to eight tokens, so nothing is summed
// across lanes. Integer accumulators live for one block, float accumulators (one vector per token) for the
// whole panel: outputs are written once. A panel streams from memory for the first group of tokens, while the
// next panel is prefetched; further groups find it in cache.
#include "engine/ggml/q8_kernels.h"

#include <ggml-cpu.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#define REFOLD_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c")))
#endif

namespace refold::q8 {

void QuantizedTokens::fit(int64_t tokens, int64_t blocks) {
    blocks_ = blocks;
    const auto all = static_cast<size_t>(tokens * blocks);
    if (scales_.size() >= all) return;
    quants_.resize(all * kBlock);
    scales_.resize(all);
    offsets_.resize(all);
}

void QuantizedTokens::quantize(const float* x, int64_t stride, int64_t first, int64_t last) {
    thread_local std::vector<std::byte> row;
    row.resize(ggml_row_size(GGML_TYPE_Q8_0, blocks_ * kBlock));
    const ggml_from_float_t from_float = ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float;
    for (int64_t t = first; t < last; ++t) {
        from_float(x + t * stride, row.data(), blocks_ * kBlock);
        const std::byte* from = row.data();
        for (auto b = static_cast<size_t>(t * blocks_); b < static_cast<size_t>((t + 1) * blocks_); ++b) {
            ggml_fp16_t scale;
            memcpy(&scale, from, sizeof(scale));
            int8_t* quants = quants_.data() + b * kBlock;
            memcpy(quants, from + sizeof(scale), static_cast<size_t>(kBlock));
            scales_[b] = ggml_fp16_to_fp32(scale);
            offsets_[b] = -128 * std::accumulate(quants, quants + kBlock, 0);
            from += sizeof(scale) + static_cast<size_t>(kBlock);
        }
    }
}

void pack_panels(const std::byte* rows, size_t stride, int64_t count, int64_t blocks, std::byte* panels) {
    for (int64_t row = 0; row < count; row += kPanelRows, panels += panel_bytes(blocks))
        pack_panel(rows + static_cast<size_t>(row) * stride, stride, std::min(kPanelRows, count - row),
                   blocks, panels);
}

namespace {

constexpr size_t kScales = kPanelRows * sizeof(uint16_t);  // bytes of a block's scales
constexpr size_t kQuants = kPanelRows * kBlock;

}  // namespace

void unpack_row(const std::byte* panel, int64_t row, int64_t blocks, float* out) {
    const std::byte* quants = panel + static_cast<size_t>(blocks) * kScales;
    for (int64_t b = 0; b < blocks; ++b, panel += kScales, quants += kQuants) {
        ggml_fp16_t half;
        memcpy(&half, panel + static_cast<size_t>(row) * sizeof(half), sizeof(half));
        const float scale = ggml_fp16_to_fp32(half);
        for (int64_t c = 0; c < kBlock; ++c) {
            const auto value = static_cast<int>(quants[c / 4 * 64 + row * 4 + c % 4]) - 128;
            *out++ = scale * static_cast<float>(value);
        }
    }
}

#ifdef REFOLD_VNNI

namespace {

constexpr size_t kBlockBytes = sizeof(uint16_t) + kBlock;  // of Q8_0

// Transposes 8 x 8 dwords; results are written `apart` bytes from each other.
REFOLD_VNNI inline void transpose(const __m256i (&r)[8], std::byte* to, size_t apart) {
    const __m256i a0 = _mm256_unpacklo_epi32(r[0], r[1]), a1 = _mm256_unpackhi_epi32(r[0], r[1]),
                  a2 = _mm256_unpacklo_epi32(r[2], r[3]), a3 = _mm256_unpackhi_epi32(r[2], r[3]),
                  a4 = _mm256_unpacklo_epi32(r[4], r[5]), a5 = _mm256_unpackhi_epi32(r[4], r[5]),
                  a6 = _mm256_unpacklo_epi32(r[6], r[7]), a7 = _mm256_unpackhi_epi32(r[6], r[7]);
    const __m256i b0 = _mm256_unpacklo_epi64(a0, a2), b1 = _mm256_unpackhi_epi64(a0, a2),
                  b2 = _mm256_unpacklo_epi64(a1, a3), b3 = _mm256_unpackhi_epi64(a1, a3),
                  b4 = _mm256_unpacklo_epi64(a4, a6), b5 = _mm256_unpackhi_epi64(a4, a6),
                  b6 = _mm256_unpacklo_epi64(a5, a7), b7 = _mm256_unpackhi_epi64(a5, a7);
    const __m256i c[8] = {_mm256_permute2x128_si256(b0, b4, 0x20), _mm256_permute2x128_si256(b1, b5, 0x20),
                          _mm256_permute2x128_si256(b2, b6, 0x20), _mm256_permute2x128_si256(b3, b7, 0x20),
                          _mm256_permute2x128_si256(b0, b4, 0x31), _mm256_permute2x128_si256(b1, b5, 0x31),
                          _mm256_permute2x128_si256(b2, b6, 0x31), _mm256_permute2x128_si256(b3, b7, 0x31)};
    for (size_t i = 0; i < 8; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * apart), c[i]);
}

REFOLD_VNNI void pack(const std::byte* rows, size_t stride, int64_t count, int64_t blocks, std::byte* panel) {
    const __m256i plus = _mm256_set1_epi8(static_cast<char>(0x80));
    std::byte* packed = panel + static_cast<size_t>(blocks) * kScales;
    for (int64_t b = 0; b < blocks; ++b, panel += kScales, packed += kQuants) {
        const std::byte* block = rows + static_cast<size_t>(b) * kBlockBytes;
        uint16_t scales[kPanelRows] = {};
        for (int64_t half = 0; half < 2; ++half) {
            __m256i quants[8];
            for (int64_t i = 0; i < 8; ++i) {
                const int64_t row = half * 8 + i;
                if (row >= count) {
                    quants[i] = plus;
                    continue;
                }
                const std::byte* from = block + static_cast<size_t>(row) * stride;
                memcpy(&scales[row], from, sizeof(uint16_t));
                quants[i] =
                    _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 2)), plus);
            }
            transpose(quants, packed + half * 32, 64);
        }
        memcpy(panel, scales, kScales);
    }
}

constexpr int kMostTokens = 8;  // per call of multiply()

// Independent accumulators per token: with few tokens one chain of sums would be bound by its latency.
template <int T>
constexpr int kChains = T >= 6 ? 1 : (kMostTokens + T - 1) / T;

template <int T>
REFOLD_VNNI void multiply(const std::byte* panel, const Tokens& tokens, int64_t first, const PanelOutput& out,
                          size_t ahead) {
    constexpr int C = kChains<T>;
    const int64_t blocks = tokens.blocks;
    const int8_t* quants = tokens.quants + first * blocks * kBlock;
    const float* scales = tokens.scales + first * blocks;
    const int32_t* offsets = tokens.offsets + first * blocks;
    const std::byte* weights = panel + static_cast<size_t>(blocks) * kScales;
    __m512 sums[T];
    for (int t = 0; t < T; ++t) sums[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b, panel += kScales, weights += kQuants, quants += kBlock) {
        __m512i products[T][C];
        for (int t = 0; t < T; ++t) {
            products[t][0] = _mm512_set1_epi32(offsets[t * blocks + b]);
            for (int c = 1; c < C; ++c) products[t][c] = _mm512_setzero_si512();
        }
        if (ahead != 0) {
            __builtin_prefetch(panel + ahead);
            for (size_t i = 0; i < kQuants; i += 64) __builtin_prefetch(weights + ahead + i);
        }
        for (int64_t j = 0; j < kBlock / 4; ++j) {
            const __m512i four_columns = _mm512_loadu_si512(weights + j * 64);
            for (int t = 0; t < T; ++t) {
                int32_t four;
                memcpy(&four, quants + t * blocks * kBlock + j * 4, sizeof(four));
                products[t][j % C] =
                    _mm512_dpbusd_epi32(products[t][j % C], four_columns, _mm512_set1_epi32(four));
            }
        }
        const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel)));
        for (int t = 0; t < T; ++t) {
            for (int c = 1; c < C; ++c) products[t][0] = _mm512_add_epi32(products[t][0], products[t][c]);
            sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[t][0]),
                                      _mm512_mul_ps(scale, _mm512_set1_ps(scales[t * blocks + b])), sums[t]);
        }
    }
    const auto mask = static_cast<__mmask16>((1U << out.rows) - 1);
    for (int t = 0; t < T; ++t) {
        float* to = out.data + static_cast<size_t>(first + t) * out.stride;
        if (out.add) sums[t] = _mm512_add_ps(sums[t], _mm512_maskz_loadu_ps(mask, to));
        _mm512_mask_storeu_ps(to, mask, sums[t]);
    }
}

using Multiply = decltype(&multiply<1>);
constexpr std::array<Multiply, kMostTokens> kMultiply = {multiply<1>, multiply<2>, multiply<3>, multiply<4>,
                                                         multiply<5>, multiply<6>, multiply<7>, multiply<8>};

}  // namespace

bool available() {
    static const bool has =
        __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
        __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
        __builtin_cpu_supports("avx512vnni") != 0;
    return has;
}

void pack_panel(const std::byte* rows, size_t stride, int64_t count, int64_t blocks, std::byte* panel) {
    pack(rows, stride, count, blocks, panel);
}

void multiply_panel(const std::byte* panel, const Tokens& tokens, int64_t first, int64_t count,
                    const PanelOutput& out) {
    // Tokens are split evenly: a remainder of one token would take nearly as long as a full group.
    const int64_t parts = (count + kMostTokens - 1) / kMostTokens;
    // The first group prefetches the next panel.
    size_t ahead = panel_bytes(tokens.blocks);
    for (int64_t i = 0; i < parts; ++i, ahead = 0) {
        const int64_t begin = count * i / parts, end = count * (i + 1) / parts;
        kMultiply[static_cast<size_t>(end - begin - 1)](panel, tokens, first + begin, out, ahead);
    }
}

#else

bool available() { return false; }
void pack_panel(const std::byte*, size_t, int64_t, int64_t, std::byte*) {}
void multiply_panel(const std::byte*, const Tokens&, int64_t, int64_t, const PanelOutput&) {}

#endif

}  // namespace refold::q8
