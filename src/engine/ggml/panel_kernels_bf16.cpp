// GEMM with panels of BF16 weights by intrinsics of AVX512_BF16.
//
// In: panels [panel][column / 2][16 rows][2 columns] BF16; x as pairs of BF16 [token][column / 2]. Out: F32
// [token][row], written or added to. Threads and loop order are those of panel_kernels.cpp: T tokens x P
// panels of sums stay in registers, one 64-byte load of weights meets T broadcast pairs.
#include <hwy/targets.h>

#include "engine/ggml/panel_kernels.h"

#if defined(__x86_64__) && !defined(REFOLD_NO_BF16_KERNELS)
#define REFOLD_BF16_KERNELS
#include <immintrin.h>
#define REFOLD_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#endif

namespace refold::kernels {

#if defined(REFOLD_BF16_KERNELS)

namespace {

REFOLD_BF16_TARGET inline __m512bh as_pairs(__m512i bits) { return reinterpret_cast<__m512bh&>(bits); }

// Micro-kernel: T tokens from `token` on times P panels from `panel` on.
template <int T, int P>
REFOLD_BF16_TARGET inline void multiply_tile(const PanelProduct& m, int64_t panel, int64_t token) {
    __m512 sums[T][P];
    for (int t = 0; t < T; ++t) {
        for (int p = 0; p < P; ++p) sums[t][p] = _mm512_setzero_ps();
    }
    const uint32_t* x = m.x.pairs + token * m.x.stride;
    const std::byte* from = m.weights + static_cast<size_t>(panel) * m.panel_bytes;
    const int64_t groups = (m.columns + 1) / 2;
    for (int64_t g = 0; g < groups; ++g, from += 64) {
        __m512bh weights[P];
        for (int p = 0; p < P; ++p)
            weights[p] = as_pairs(_mm512_loadu_si512(from + static_cast<size_t>(p) * m.panel_bytes));
        for (int t = 0; t < T; ++t) {
            const __m512bh input = as_pairs(_mm512_set1_epi32(static_cast<int>(x[t * m.x.stride + g])));
            for (int p = 0; p < P; ++p) sums[t][p] = _mm512_dpbf16_ps(sums[t][p], weights[p], input);
        }
    }
    for (int t = 0; t < T; ++t) {
        float* y = m.y + (token + t) * m.y_stride + panel * Panels::kRows;
        for (int p = 0; p < P; ++p, y += Panels::kRows) {
            const int64_t rows = m.rows - (panel + p) * Panels::kRows;
            const auto mask = static_cast<__mmask16>(rows < Panels::kRows ? (1U << rows) - 1 : ~0U);
            const __m512 sum = m.add ? _mm512_add_ps(sums[t][p], _mm512_maskz_loadu_ps(mask, y)) : sums[t][p];
            _mm512_mask_storeu_ps(y, mask, sum);
        }
    }
}

template <int T>
REFOLD_BF16_TARGET void multiply_tokens(const PanelProduct& m, int64_t& token) {
    constexpr int kPanelsPerTile = T == 8 ? 2 : 4;
    for (; token + T <= m.x.tokens; token += T) {
        int64_t panel = m.range.first;
        for (; panel + kPanelsPerTile <= m.range.last; panel += kPanelsPerTile)
            multiply_tile<T, kPanelsPerTile>(m, panel, token);
        for (; panel < m.range.last; ++panel) multiply_tile<T, 1>(m, panel, token);
    }
}

}  // namespace

bool has_bf16_pairs() {
    static const bool has = __builtin_cpu_supports("avx512bf16") != 0 &&
                            __builtin_cpu_supports("avx512bw") != 0 &&
                            __builtin_cpu_supports("avx512vl") != 0;
    return has && (hwy::SupportedTargets() & HWY_AVX3_DL) != 0;
}

REFOLD_BF16_TARGET void to_bf16_pairs(const float* x, int64_t columns, uint32_t* pairs) {
    for (int64_t c = 0; c < columns; c += 32, pairs += 16) {
        const auto mask = [](int64_t left) {
            return static_cast<__mmask16>(left >= 16 ? ~0U : left <= 0 ? 0U : (1U << left) - 1);
        };
        const __mmask16 low = mask(columns - c), high = mask(columns - c - 16);
        const auto packed =
            _mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, x + c + 16), _mm512_maskz_loadu_ps(low, x + c));
        const int64_t left = (columns - c + 1) / 2;
        _mm512_mask_storeu_epi32(pairs, mask(left), reinterpret_cast<const __m512i&>(packed));
    }
}

REFOLD_BF16_TARGET void multiply_bf16_pairs(const PanelProduct& product) {
    int64_t token = 0;
    multiply_tokens<8>(product, token);
    multiply_tokens<6>(product, token);
    multiply_tokens<4>(product, token);
    multiply_tokens<3>(product, token);
    multiply_tokens<2>(product, token);
    multiply_tokens<1>(product, token);
}

#else

bool has_bf16_pairs() { return false; }
void to_bf16_pairs(const float*, int64_t, uint32_t*) {}
void multiply_bf16_pairs(const PanelProduct&) {}

#endif

}  // namespace refold::kernels
