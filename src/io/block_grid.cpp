#include "io/block_grid.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace refold {
namespace {

using Bytes = uint8_t;

const Bytes* bytes_of(const std::byte* block) { return reinterpret_cast<const Bytes*>(block); }
Bytes* bytes_of(std::byte* block) { return reinterpret_cast<Bytes*>(block); }

float half_at(const std::byte* block, size_t at) {
    ggml_fp16_t bits = 0;
    memcpy(&bits, block + at, sizeof bits);
    return ggml_fp16_to_fp32(bits);
}

// ---- 32 elements to a block

constexpr int kSmall = 32;

// Four low bits of each code: elements 0 to 15 in the low halves of the bytes, 16 to 31 in the high ones.
void write_nibbles(Bytes* out, const uint8_t* codes) {
    for (int i = 0; i < kSmall / 2; ++i)
        out[i] = static_cast<Bytes>((codes[i] & 15) | (codes[i + kSmall / 2] & 15) << 4);
}

// The fifth bits, in the order of the elements.
void write_fifth_bits(Bytes* out, const uint8_t* codes) {
    for (int byte = 0; byte < kSmall / 8; ++byte) {
        unsigned bits = 0;
        for (unsigned i = 0; i < 8; ++i)
            bits |= static_cast<unsigned>(codes[byte * 8 + static_cast<int>(i)] >> 4 & 1) << i;
        out[byte] = static_cast<Bytes>(bits);
    }
}

void scale_alone(const std::byte* block, float* scale, float* offset) {
    std::fill_n(scale, kSmall, half_at(block, 0));
    std::fill_n(offset, kSmall, 0.0F);
}

void scale_and_offset(const std::byte* block, float* scale, float* offset) {
    std::fill_n(scale, kSmall, half_at(block, 0));
    std::fill_n(offset, kSmall, half_at(block, 2));
}

// Q4_0, IQ4_NL: half scale, 16 bytes of codes. Q4_1 has an offset after the scale, Q5_0 and Q5_1 the fifth
// bits before the other four.
template <size_t At>
void write_four_bits(std::byte* block, const uint8_t* codes) {
    write_nibbles(bytes_of(block) + At, codes);
}
template <size_t At>
void write_five_bits(std::byte* block, const uint8_t* codes) {
    write_fifth_bits(bytes_of(block) + At, codes);
    write_nibbles(bytes_of(block) + At + 4, codes);
}

void write_bytes(std::byte* block, const uint8_t* codes) {
    for (int i = 0; i < kSmall; ++i) bytes_of(block)[2 + i] = static_cast<Bytes>(codes[i] - 128);
}

// MXFP4: a byte e, then 16 bytes of codes. The scale is 2^(e - 127), of levels that count halves.
void exponent_scale(const std::byte* block, float* scale, float* offset) {
    std::fill_n(scale, kSmall, std::ldexp(1.0F, bytes_of(block)[0] - 128));
    std::fill_n(offset, kSmall, 0.0F);
}

// ---- 256 elements to a block

constexpr int kLarge = 256, kRun = 16;

// Fills a run of `length` elements.
struct Run {
    float *scale, *offset;
    void fill(int index, int length, float s, float o) const {
        std::fill_n(scale + index * length, length, s);
        std::fill_n(offset + index * length, length, o);
    }
};

// Two bits of code `i` of 256: bytes of 32 elements, four planes each.
template <typename See>
void for_two_bits(See&& see) {
    for (int i = 0; i < kLarge; ++i) see(i, i / 128 * 32 + i % 32, i % 128 / 32 * 2);
}

// Q2_K: 16 bytes of scales (low half) and offsets (high half), 64 of codes, half d, half dmin.
void scales_q2_k(const std::byte* block, float* scale, float* offset) {
    const float d = half_at(block, 80), dmin = half_at(block, 82);
    for (int run = 0; run < kLarge / kRun; ++run) {
        const Bytes s = bytes_of(block)[run];
        Run{scale, offset}.fill(run, kRun, d * static_cast<float>(s & 15),
                                -dmin * static_cast<float>(s >> 4));
    }
}

void write_two_bits(Bytes* out, const uint8_t* codes) {
    std::fill_n(out, 64, Bytes{0});
    for_two_bits(
        [&](int i, int byte, int shift) { out[byte] |= static_cast<Bytes>((codes[i] & 3) << shift); });
}

void codes_q2_k(std::byte* block, const uint8_t* codes) { write_two_bits(bytes_of(block) + 16, codes); }

// Q3_K: 32 bytes of third bits, 64 of two bits, 12 of scales of six bits, half d.
void scales_q3_k(const std::byte* block, float* scale, float* offset) {
    const float d = half_at(block, 108);
    const Bytes* s = bytes_of(block) + 96;
    for (int run = 0; run < kLarge / kRun; ++run) {
        const int low = run < 8 ? s[run] & 15 : s[run - 8] >> 4, high = s[8 + run % 4] >> (run / 4 * 2) & 3;
        Run{scale, offset}.fill(run, kRun, d * static_cast<float>((low | high << 4) - 32), 0);
    }
}

void codes_q3_k(std::byte* block, const uint8_t* codes) {
    Bytes* third = bytes_of(block);
    write_two_bits(third + 32, codes);
    std::fill_n(third, 32, Bytes{0});
    for (int i = 0; i < kLarge; ++i) third[i % 32] |= static_cast<Bytes>((codes[i] >> 2 & 1) << i / 32);
}

// Q4_K, Q5_K: half d, half dmin, 12 bytes with eight scales and offsets of six bits.
void scales_q45_k(const std::byte* block, float* scale, float* offset) {
    const float d = half_at(block, 0), dmin = half_at(block, 2);
    const Bytes* s = bytes_of(block) + 4;
    for (int run = 0; run < 8; ++run) {
        const int a = run < 4 ? s[run] & 63 : (s[run + 4] & 15) | s[run - 4] >> 6 << 4,
                  b = run < 4 ? s[run + 4] & 63 : s[run + 4] >> 4 | s[run] >> 6 << 4;
        Run{scale, offset}.fill(run, 32, d * static_cast<float>(a), -dmin * static_cast<float>(b));
    }
}

// 64 elements share 32 bytes: the first half of them the low bits.
void write_four_bits_k(Bytes* out, const uint8_t* codes) {
    for (int chunk = 0; chunk < 4; ++chunk, codes += 64, out += 32) {
        for (int i = 0; i < 32; ++i) out[i] = static_cast<Bytes>((codes[i] & 15) | (codes[i + 32] & 15) << 4);
    }
}

void codes_q4_k(std::byte* block, const uint8_t* codes) { write_four_bits_k(bytes_of(block) + 16, codes); }

void codes_q5_k(std::byte* block, const uint8_t* codes) {
    Bytes* fifth = bytes_of(block) + 16;
    std::fill_n(fifth, 32, Bytes{0});
    for (int i = 0; i < kLarge; ++i) fifth[i % 32] |= static_cast<Bytes>((codes[i] >> 4 & 1) << i / 32);
    write_four_bits_k(fifth + 32, codes);
}

// Q6_K: 128 bytes of four bits, 64 of two bits, 16 signed scales, half d.
void scales_q6_k(const std::byte* block, float* scale, float* offset) {
    const float d = half_at(block, 208);
    for (int run = 0; run < kLarge / kRun; ++run)
        Run{scale, offset}.fill(run, kRun,
                                d * static_cast<float>(static_cast<int8_t>(bytes_of(block)[192 + run])), 0);
}

void codes_q6_k(std::byte* block, const uint8_t* codes) {
    Bytes *low = bytes_of(block), *high = low + 128;
    std::fill_n(low, 192, Bytes{0});
    for (int i = 0; i < kLarge; ++i) {
        const int half = i / 128, quarter = i % 128 / 32, l = i % 32;
        low[half * 64 + quarter % 2 * 32 + l] |= static_cast<Bytes>((codes[i] & 15) << quarter / 2 * 4);
        high[half * 32 + l] |= static_cast<Bytes>(codes[i] >> 4 << quarter * 2);
    }
}

// IQ4_XS: half d, the two high bits of eight scales, their four low bits, 128 bytes of codes.
void scales_iq4_xs(const std::byte* block, float* scale, float* offset) {
    const float d = half_at(block, 0);
    const Bytes* s = bytes_of(block) + 2;
    const int high = s[0] | s[1] << 8;
    for (int run = 0; run < 8; ++run) {
        const int six = (s[2 + run / 2] >> run % 2 * 4 & 15) | (high >> run * 2 & 3) << 4;
        Run{scale, offset}.fill(run, 32, d * static_cast<float>(six - 32), 0);
    }
}

void codes_iq4_xs(std::byte* block, const uint8_t* codes) {
    for (int run = 0; run < 8; ++run) write_nibbles(bytes_of(block) + 8 + run * 16, codes + run * 32);
}

constexpr std::array<int8_t, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
constexpr std::array<int8_t, 16> kFp4 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr std::array kGrids = {
    BlockGrid{DType::Q4_0, 16, -8, nullptr, scale_alone, write_four_bits<2>},
    BlockGrid{DType::Q4_1, 16, 0, nullptr, scale_and_offset, write_four_bits<4>},
    BlockGrid{DType::Q5_0, 32, -16, nullptr, scale_alone, write_five_bits<2>},
    BlockGrid{DType::Q5_1, 32, 0, nullptr, scale_and_offset, write_five_bits<4>},
    BlockGrid{DType::Q8_0, 256, -128, nullptr, scale_alone, write_bytes},
    BlockGrid{DType::IQ4_NL, 16, 0, kIq4.data(), scale_alone, write_four_bits<2>},
    BlockGrid{DType::MXFP4, 16, 0, kFp4.data(), exponent_scale, write_four_bits<1>},
    BlockGrid{DType::Q2_K, 4, 0, nullptr, scales_q2_k, codes_q2_k},
    BlockGrid{DType::Q3_K, 8, -4, nullptr, scales_q3_k, codes_q3_k},
    BlockGrid{DType::Q4_K, 16, 0, nullptr, scales_q45_k, codes_q4_k},
    BlockGrid{DType::Q5_K, 32, 0, nullptr, scales_q45_k, codes_q5_k},
    BlockGrid{DType::Q6_K, 64, -32, nullptr, scales_q6_k, codes_q6_k},
    BlockGrid{DType::IQ4_XS, 16, 0, kIq4.data(), scales_iq4_xs, codes_iq4_xs},
};

}  // namespace

uint8_t BlockGrid::nearest(float x, float scale, float offset) const {
    const float level = scale == 0 ? 0 : (x - offset) / scale;
    if (levels == nullptr) {
        const float code = std::nearbyint(level - static_cast<float>(first));
        return static_cast<uint8_t>(std::clamp(code, 0.0F, static_cast<float>(codes - 1)));
    }
    uint8_t best = 0;
    for (int code = 1; code < codes; ++code) {
        if (std::abs(static_cast<float>(levels[code]) - level) <
            std::abs(static_cast<float>(levels[best]) - level))
            best = static_cast<uint8_t>(code);
    }
    return best;
}

const BlockGrid* block_grid(DType type) {
    const auto found =
        std::find_if(kGrids.begin(), kGrids.end(), [&](const BlockGrid& g) { return g.type == type; });
    return found == kGrids.end() ? nullptr : &*found;
}

}  // namespace refold
