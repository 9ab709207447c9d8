// How each quantized type is read from a panel (row_panels.h), by AVX-512. The layouts of blocks are ggml's.
//
// A type's struct has
//   kType, kBytes (of a block), kGroups (of 32 columns, in a block);
//   kZero (a byte minus this is the number that is multiplied), kScales (of a group: 1 or 2), kMinimums
//   (whether a number is scale * (byte - kZero) - minimum); enter(block): goes to a block; group(g): goes to
//   its group g; quad(j): columns 4 j to 4 j + 3 of the group, [16 rows][4 columns] bytes; scale(h),
//   minimum(h): of half h of the group, or of the whole group, [16 rows].
#pragma once

// GCC 12 takes the undefined vectors in its own header for uninitialized ones (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "engine/ggml/row_panel_kernels.h"

#define REFOLD_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c")))

namespace refold::row_panels {

struct Block {
    const std::byte* odd;
    const std::byte* dwords;

    REFOLD_VNNI __m512i dword(int64_t i) const { return _mm512_loadu_si512(dwords + i * 64); }
    // The odd bytes as F16.
    REFOLD_VNNI __m512 half() const {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
    }
};

// The F16 in the lower or upper half of each dword.
REFOLD_VNNI inline __m512 lower_half(__m512i x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }
REFOLD_VNNI inline __m512 upper_half(__m512i x) { return lower_half(_mm512_srli_epi32(x, 16)); }

REFOLD_VNNI inline __m512i masked(__m512i x, int byte) {
    return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(byte)));
}
// Shifts by a number that is the same for all; bits that come from a neighboring byte must be masked.
REFOLD_VNNI inline __m512i right(__m512i x, int64_t bits) {
    return _mm512_srl_epi32(x, _mm_cvtsi64_si128(bits));
}
// Moves bit `from` of each byte to bit `to`; the others must be masked.
REFOLD_VNNI inline __m512i moved(__m512i x, int64_t from, int to) {
    return _mm512_rorv_epi32(x, _mm512_set1_epi32(static_cast<int>(from) - to));
}
// Byte i of each dword.
REFOLD_VNNI inline __m512i byte_of(__m512i x, int64_t i) {
    return _mm512_and_si512(right(x, 8 * i), _mm512_set1_epi32(0xff));
}
REFOLD_VNNI inline __m512i minus(__m512i x, int y) { return _mm512_sub_epi32(x, _mm512_set1_epi32(y)); }
REFOLD_VNNI inline __m512 times(__m512 x, __m512i y) { return _mm512_mul_ps(x, _mm512_cvtepi32_ps(y)); }

// Looks the lower four bits of each byte up in a table of 16 bytes.
REFOLD_VNNI inline __m512i looked_up(const uint8_t (&table)[16], __m512i x) {
    return _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), x);
}

// --- Blocks of 32 numbers: a group each.

// Half-bytes where the lower four bits of 16 bytes are columns 0 to 15, the upper ones 16 to 31.
REFOLD_VNNI inline __m512i half_bytes(const Block& block, int64_t first, int j) {
    const __m512i x = block.dword(first + j % 4);
    return masked(j < 4 ? x : _mm512_srli_epi32(x, 4), 0x0f);
}

// Adds 16 to the bytes of quad j whose bit is set in the 32 bits of each row.
REFOLD_VNNI inline __m512i with_fifth_bits(__m512i quad, __m512i bits, int j) {
    const __m512i first = _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    const __m512i bytes =
        _mm512_shuffle_epi8(bits, _mm512_add_epi8(first, _mm512_set1_epi8(static_cast<char>(j / 2))));
    const __mmask64 set = _mm512_test_epi8_mask(
        bytes, _mm512_set1_epi32(j % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010U)));
    return _mm512_mask_add_epi8(quad, set, quad, _mm512_set1_epi8(16));
}

struct OneScale {
    static constexpr int64_t kGroups = 1;
    static constexpr int kScales = 1;
    static constexpr bool kMinimums = false;
    Block block{};
    __m512 d;

    REFOLD_VNNI void enter(const Block& b) {
        block = b;
        d = b.half();
    }
    REFOLD_VNNI void group(int64_t) {}
    REFOLD_VNNI __m512 scale(int) const { return d; }
    REFOLD_VNNI static __m512 minimum(int) { return _mm512_setzero_ps(); }
};

// Scale and what is added are F16 in the first dword.
struct ScaleAndMinimum {
    static constexpr int64_t kGroups = 1;
    static constexpr int kScales = 1;
    static constexpr bool kMinimums = true;
    static constexpr int kZero = 0;
    Block block{};
    __m512 d, m;

    REFOLD_VNNI void enter(const Block& b) {
        block = b;
        d = lower_half(b.dword(0));
        m = _mm512_sub_ps(_mm512_setzero_ps(), upper_half(b.dword(0)));
    }
    REFOLD_VNNI void group(int64_t) {}
    REFOLD_VNNI __m512 scale(int) const { return d; }
    REFOLD_VNNI __m512 minimum(int) const { return m; }
};

struct Q4_0 : OneScale {
    static constexpr ggml_type kType = GGML_TYPE_Q4_0;
    static constexpr size_t kBytes = 18;
    static constexpr int kZero = 8;
    REFOLD_VNNI __m512i quad(int j) const { return half_bytes(block, 0, j); }
};

struct Q4_1 : ScaleAndMinimum {
    static constexpr ggml_type kType = GGML_TYPE_Q4_1;
    static constexpr size_t kBytes = 20;
    REFOLD_VNNI __m512i quad(int j) const { return half_bytes(block, 1, j); }
};

struct Q5_0 : OneScale {
    static constexpr ggml_type kType = GGML_TYPE_Q5_0;
    static constexpr size_t kBytes = 22;
    static constexpr int kZero = 16;
    REFOLD_VNNI __m512i quad(int j) const {
        return with_fifth_bits(half_bytes(block, 1, j), block.dword(0), j);
    }
};

struct Q5_1 : ScaleAndMinimum {
    static constexpr ggml_type kType = GGML_TYPE_Q5_1;
    static constexpr size_t kBytes = 24;
    REFOLD_VNNI __m512i quad(int j) const {
        return with_fifth_bits(half_bytes(block, 2, j), block.dword(1), j);
    }
};

struct Q8_0 : OneScale {
    static constexpr ggml_type kType = GGML_TYPE_Q8_0;
    static constexpr size_t kBytes = 34;
    static constexpr int kZero = 128;
    REFOLD_VNNI __m512i quad(int j) const {
        return _mm512_xor_si512(block.dword(j), _mm512_set1_epi8(static_cast<char>(0x80)));
    }
};

constexpr uint8_t kIq4Values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

struct IQ4_NL : OneScale {
    static constexpr ggml_type kType = GGML_TYPE_IQ4_NL;
    static constexpr size_t kBytes = 18;
    static constexpr int kZero = 128;
    REFOLD_VNNI __m512i quad(int j) const { return looked_up(kIq4Values, half_bytes(block, 0, j)); }
};

struct MXFP4 : OneScale {
    static constexpr ggml_type kType = GGML_TYPE_MXFP4;
    static constexpr size_t kBytes = 17;
    static constexpr int kZero = 16;
    // Twice the values, whose scales are halved.
    static constexpr uint8_t kValues[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

    // 2^(e - 128): for e < 2 a subnormal number.
    REFOLD_VNNI void enter(const Block& b) {
        block = b;
        const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b.odd)));
        const __m512i normal = _mm512_slli_epi32(minus(e, 1), 23),
                      small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
        d = _mm512_castsi512_ps(
            _mm512_mask_blend_epi32(_mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), normal, small));
    }
    REFOLD_VNNI __m512i quad(int j) const { return looked_up(kValues, half_bytes(block, 0, j)); }
};

// --- Blocks of 256 numbers: eight groups.

struct K {
    static constexpr int64_t kGroups = 8;
    Block block{};
    int64_t g = 0;
    __m512 d, dmin;
    REFOLD_VNNI void group(int64_t i) { g = i; }
    REFOLD_VNNI static __m512 minimum(int) { return _mm512_setzero_ps(); }
};

// Q4_K and Q5_K: a scale and a minimum of six bits for each group.
struct SixBits : K {
    static constexpr int kScales = 1;
    static constexpr bool kMinimums = true;
    static constexpr int kZero = 0;
    __m512i scales[2], minimums[2];  // dwords of four groups

    REFOLD_VNNI void enter(const Block& b) {
        block = b;
        d = lower_half(b.dword(0));
        dmin = upper_half(b.dword(0));
        const __m512i x = b.dword(1), y = b.dword(2), z = b.dword(3);
        scales[0] = masked(x, 0x3f);
        minimums[0] = masked(y, 0x3f);
        scales[1] = _mm512_or_si512(masked(z, 0x0f), masked(moved(x, 6, 4), 0x30));
        minimums[1] = _mm512_or_si512(masked(_mm512_srli_epi32(z, 4), 0x0f), masked(moved(y, 6, 4), 0x30));
    }
    REFOLD_VNNI __m512 scale(int) const { return times(d, byte_of(g < 4 ? scales[0] : scales[1], g % 4)); }
    REFOLD_VNNI __m512 minimum(int) const {
        return times(dmin, byte_of(g < 4 ? minimums[0] : minimums[1], g % 4));
    }
    // Two groups share 32 bytes.
    REFOLD_VNNI __m512i four_bits(int64_t first, int j) const {
        return masked(right(block.dword(first + g / 2 * 8 + j), 4 * (g % 2)), 0x0f);
    }
};

struct Q4_K : SixBits {
    static constexpr ggml_type kType = GGML_TYPE_Q4_K;
    static constexpr size_t kBytes = 144;
    REFOLD_VNNI __m512i quad(int j) const { return four_bits(4, j); }
};

struct Q5_K : SixBits {
    static constexpr ggml_type kType = GGML_TYPE_Q5_K;
    static constexpr size_t kBytes = 176;
    REFOLD_VNNI __m512i quad(int j) const {
        return _mm512_or_si512(four_bits(12, j), masked(moved(block.dword(4 + j), g, 4), 0x10));
    }
};

struct Q6_K : K {
    static constexpr ggml_type kType = GGML_TYPE_Q6_K;
    static constexpr size_t kBytes = 210;
    static constexpr int kScales = 2;
    static constexpr bool kMinimums = false;
    static constexpr int kZero = 32;
    REFOLD_VNNI void enter(const Block& b) {
        block = b;
        d = b.half();
    }
    REFOLD_VNNI __m512 scale(int h) const {
        const int64_t s = 2 * g + h;
        const __m512i x = _mm512_sll_epi32(block.dword(48 + s / 4), _mm_cvtsi64_si128(24 - 8 * (s % 4)));
        return times(d, _mm512_srai_epi32(x, 24));
    }
    REFOLD_VNNI __m512i quad(int j) const {
        const int64_t part = g / 4, in_part = g % 4;
        const __m512i low = right(block.dword(part * 16 + in_part % 2 * 8 + j), in_part / 2 * 4),
                      high = moved(block.dword(32 + part * 8 + j), 2 * in_part, 4);
        return _mm512_or_si512(masked(low, 0x0f), masked(high, 0x30));
    }
};

struct Q3_K : K {
    static constexpr ggml_type kType = GGML_TYPE_Q3_K;
    static constexpr size_t kBytes = 110;
    static constexpr int kScales = 2;
    static constexpr bool kMinimums = false;
    static constexpr int kZero = 4;
    __m512i scales[4];  // dwords of four scales
    // Four lower bits of each byte, and two upper ones that begin at bit `bits`.
    REFOLD_VNNI static __m512i joined(__m512i lower, __m512i upper, int bits) {
        return _mm512_or_si512(masked(lower, 0x0f), masked(moved(upper, bits, 4), 0x30));
    }
    REFOLD_VNNI void enter(const Block& b) {
        block = b;
        d = b.half();
        const __m512i x = b.dword(24), y = b.dword(25), z = b.dword(26);
        scales[0] = joined(x, z, 0);
        scales[1] = joined(y, z, 2);
        scales[2] = joined(_mm512_srli_epi32(x, 4), z, 4);
        scales[3] = joined(_mm512_srli_epi32(y, 4), z, 6);
    }
    REFOLD_VNNI __m512 scale(int h) const {
        const int64_t s = 2 * g + h;
        return times(d, minus(byte_of(scales[s / 4], s % 4), 32));
    }
    REFOLD_VNNI __m512i quad(int j) const {
        const __m512i low = right(block.dword(8 + g / 4 * 8 + j), 2 * (g % 4)),
                      high = moved(block.dword(j), g, 2);
        return _mm512_or_si512(masked(low, 0x03), masked(high, 0x04));
    }
};

struct Q2_K : K {
    static constexpr ggml_type kType = GGML_TYPE_Q2_K;
    static constexpr size_t kBytes = 84;
    static constexpr int kScales = 2;
    static constexpr bool kMinimums = true;
    static constexpr int kZero = 0;
    REFOLD_VNNI void enter(const Block& b) {
        block = b;
        d = lower_half(b.dword(20));
        dmin = upper_half(b.dword(20));
    }
    REFOLD_VNNI __m512i scale_byte(int h) const {
        return byte_of(block.dword((2 * g + h) / 4), (2 * g + h) % 4);
    }
    REFOLD_VNNI __m512 scale(int h) const { return times(d, masked(scale_byte(h), 0x0f)); }
    REFOLD_VNNI __m512 minimum(int h) const { return times(dmin, _mm512_srli_epi32(scale_byte(h), 4)); }
    REFOLD_VNNI __m512i quad(int j) const {
        return masked(right(block.dword(4 + g / 4 * 8 + j), 2 * (g % 4)), 0x03);
    }
};

struct IQ4_XS : K {
    static constexpr ggml_type kType = GGML_TYPE_IQ4_XS;
    static constexpr size_t kBytes = 136;
    static constexpr int kScales = 1;
    static constexpr bool kMinimums = false;
    static constexpr int kZero = 128;
    REFOLD_VNNI void enter(const Block& b) {
        block = b;
        d = lower_half(b.dword(0));
    }
    REFOLD_VNNI __m512 scale(int) const {
        const __m512i low = masked(right(block.dword(1), 4 * g), 0x0f),
                      high = _mm512_and_si512(right(block.dword(0), 16 + 2 * g), _mm512_set1_epi32(3));
        return times(d, minus(_mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi32(0x0f)),
                                              _mm512_slli_epi32(high, 4)),
                              32));
    }
    REFOLD_VNNI __m512i quad(int j) const { return looked_up(kIq4Values, half_bytes(block, 2 + 4 * g, j)); }
};

}  // namespace refold::row_panels
