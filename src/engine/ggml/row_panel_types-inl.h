// How each quantized type is read from a panel (row_panels.h); included once per Highway target. The layouts
// of blocks are ggml's.
//
// A vector holds the same dword of kLanes rows, a part of the panel's sixteen. A type's struct has
//   kType, kBytes (of a block), kGroups (of 32 columns, in a block);
//   kMost (the largest byte that quad() gives); kZero (a byte minus this is the number that is multiplied: 0
//   or a power of two; 128 if bytes are above 127); kScales (of a group: 1 or 2), kMinimums (of a group, 0 to
//   2: a number is scale * (byte - kZero) - minimum; these types have no kZero); enter(block): goes to a
//   block; group(g): goes to its group g; quad(j): columns 4 j to 4 j + 3 of the group, bytes [row][column];
//   scale(h), minimum(h): of half h of the group, or of the whole group, [row].
#if defined(REFOLD_ROW_PANEL_TYPES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFOLD_ROW_PANEL_TYPES_INL_H_
#undef REFOLD_ROW_PANEL_TYPES_INL_H_
#else
#define REFOLD_ROW_PANEL_TYPES_INL_H_
#endif

#include <hwy/highway.h>

#include "engine/ggml/row_panel_kernels.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using DWords = hn::CappedTag<uint32_t, row_panels::kRows>;
using DInts = hn::RebindToSigned<DWords>;
using DFloats = hn::RebindToFloat<DWords>;
using DBytes = hn::Repartition<uint8_t, DWords>;
using Words = hn::Vec<DWords>;
using Floats = hn::Vec<DFloats>;
constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(DWords()));
constexpr int64_t kDwordStride = row_panels::kRows * 4;  // bytes between dwords of a row

struct Block {
    const std::byte* odd;
    const std::byte* dwords;

    HWY_INLINE Words dword(int64_t i) const {
        return hn::LoadU(DWords(), reinterpret_cast<const uint32_t*>(dwords + i * kDwordStride));
    }
    // The odd bytes as F16.
    HWY_INLINE Floats half() const {
        const hn::Rebind<hwy::float16_t, DFloats> halves;
        return hn::PromoteTo(DFloats(), hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(odd)));
    }
};

// The F16 in the lower half of each dword: its bits as those of a float have an exponent that is 112 too
// small.
HWY_INLINE Floats LowerF16(Words x) {
    const DWords d;
    const auto small = hn::BitCast(DFloats(), hn::ShiftLeft<13>(hn::And(x, hn::Set(d, 0x7fff))));
    const auto sign = hn::ShiftLeft<16>(hn::And(x, hn::Set(d, 0x8000)));
    return hn::Or(hn::Mul(small, hn::Set(DFloats(), 0x1p112F)), hn::BitCast(DFloats(), sign));
}
HWY_INLINE Floats UpperF16(Words x) { return LowerF16(hn::ShiftRight<16>(x)); }

HWY_INLINE Words Masked(Words x, uint32_t byte) { return hn::And(x, hn::Set(DWords(), byte * 0x01010101U)); }
// Bits that come from a neighboring byte must be masked.
HWY_INLINE Words Right(Words x, int64_t bits) { return hn::ShiftRightSame(x, static_cast<int>(bits)); }
// Moves bit `from` of each byte to bit `to`; the others must be masked.
HWY_INLINE Words Moved(Words x, int64_t from, int64_t to) {
    return from >= to ? Right(x, from - to) : hn::ShiftLeftSame(x, static_cast<int>(to - from));
}
// Byte i of each dword.
HWY_INLINE Words ByteOf(Words x, int64_t i) { return hn::And(Right(x, 8 * i), hn::Set(DWords(), 0xff)); }
HWY_INLINE Words Minus(Words x, uint32_t y) { return hn::Sub(x, hn::Set(DWords(), y)); }
HWY_INLINE Floats Times(Floats x, Words y) {
    return hn::Mul(x, hn::ConvertTo(DFloats(), hn::BitCast(DInts(), y)));
}

// The lower or upper half of each byte.
HWY_INLINE Words HalfOf(Words x, int h) { return Masked(h == 0 ? x : hn::ShiftRight<4>(x), 0x0f); }

// Looks each byte, below 16, up in a table.
HWY_INLINE Words LookedUp(const uint8_t (&table)[16], Words x) {
    const DBytes d;
    return hn::BitCast(DWords(), hn::TableLookupBytes(hn::LoadDup128(d, table), hn::BitCast(d, x)));
}

// --- Blocks of 32 numbers: a group each.

// Half-bytes where the lower four bits of 16 bytes are columns 0 to 15, the upper ones 16 to 31.
HWY_INLINE Words HalfBytes(const Block& block, int64_t first, int j) {
    return HalfOf(block.dword(first + j % 4), j / 4);
}

// Of 32 bits of each row: those of quad j, as a mask of bytes.
HWY_INLINE hn::Mask<DBytes> BitsOfQuad(Words bits, int j) {
    alignas(16) static constexpr uint8_t kFirst[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    const DBytes d;
    const auto places = hn::Add(hn::LoadDup128(d, kFirst), hn::Set(d, static_cast<uint8_t>(j / 2)));
    const auto own = hn::BitCast(d, hn::Set(DWords(), j % 2 == 0 ? 0x08040201U : 0x80402010U));
    return hn::TestBit(hn::TableLookupBytes(hn::BitCast(d, bits), places), own);
}

// Adds 16 to the bytes of quad j whose bit is set.
HWY_INLINE Words WithFifthBits(Words quad, Words bits, int j) {
    const DBytes d;
    return hn::Or(quad, hn::BitCast(DWords(), hn::IfThenElseZero(BitsOfQuad(bits, j), hn::Set(d, 16))));
}

struct OneScale {
    static constexpr int64_t kGroups = 1;
    static constexpr int kScales = 1;
    static constexpr int kMinimums = 0;
    Block block{};
    Floats d;

    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = b.half();
    }
    HWY_INLINE void group(int64_t) {}
    HWY_INLINE Floats scale(int) const { return d; }
    HWY_INLINE static Floats minimum(int) { return hn::Zero(DFloats()); }
};

// Scale and what is added are F16 in the first dword.
struct ScaleAndMinimum {
    static constexpr int64_t kGroups = 1;
    static constexpr int kScales = 1;
    static constexpr int kMinimums = 1;
    static constexpr int kZero = 0;
    Block block{};
    Floats d, m;

    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = LowerF16(b.dword(0));
        m = hn::Neg(UpperF16(b.dword(0)));
    }
    HWY_INLINE void group(int64_t) {}
    HWY_INLINE Floats scale(int) const { return d; }
    HWY_INLINE Floats minimum(int) const { return m; }
};

struct Q40 : OneScale {
    static constexpr ggml_type kType = GGML_TYPE_Q4_0;
    static constexpr int kMost = 15;
    static constexpr size_t kBytes = 18;
    static constexpr int kZero = 8;
    HWY_INLINE Words quad(int j) const { return HalfBytes(block, 0, j); }
};

struct Q41 : ScaleAndMinimum {
    static constexpr ggml_type kType = GGML_TYPE_Q4_1;
    static constexpr int kMost = 15;
    static constexpr size_t kBytes = 20;
    HWY_INLINE Words quad(int j) const { return HalfBytes(block, 1, j); }
};

struct Q50 : OneScale {
    static constexpr ggml_type kType = GGML_TYPE_Q5_0;
    static constexpr int kMost = 31;
    static constexpr size_t kBytes = 22;
    static constexpr int kZero = 16;
    HWY_INLINE Words quad(int j) const { return WithFifthBits(HalfBytes(block, 1, j), block.dword(0), j); }
};

struct Q51 : ScaleAndMinimum {
    static constexpr ggml_type kType = GGML_TYPE_Q5_1;
    static constexpr int kMost = 31;
    static constexpr size_t kBytes = 24;
    HWY_INLINE Words quad(int j) const { return WithFifthBits(HalfBytes(block, 2, j), block.dword(1), j); }
};

struct Q80 : OneScale {
    static constexpr ggml_type kType = GGML_TYPE_Q8_0;
    static constexpr int kMost = 255;
    static constexpr size_t kBytes = 34;
    static constexpr int kZero = 128;
    HWY_INLINE Words quad(int j) const { return hn::Xor(block.dword(j), hn::Set(DWords(), 0x80808080U)); }
};

alignas(16) constexpr uint8_t kIq4Values[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                129, 141, 153, 166, 181, 197, 217, 241};

struct Iq4Nl : OneScale {
    static constexpr ggml_type kType = GGML_TYPE_IQ4_NL;
    static constexpr int kMost = 255;
    static constexpr size_t kBytes = 18;
    static constexpr int kZero = 128;
    HWY_INLINE Words quad(int j) const { return LookedUp(kIq4Values, HalfBytes(block, 0, j)); }
};

struct Mxfp4 : OneScale {
    static constexpr ggml_type kType = GGML_TYPE_MXFP4;
    static constexpr int kMost = 28;
    static constexpr size_t kBytes = 17;
    static constexpr int kZero = 16;
    // Twice the values, whose scales are halved.
    alignas(16) static constexpr uint8_t kValues[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                                        16, 15, 14, 13, 12, 10, 8,  4};

    // 2^(e - 128): for e < 2 a subnormal number.
    HWY_INLINE void enter(const Block& b) {
        block = b;
        const DWords w;
        const hn::Rebind<uint8_t, DWords> bytes;
        const auto e = hn::PromoteTo(w, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(b.odd)));
        const auto normal = hn::ShiftLeft<23>(Minus(e, 1));
        const auto small =
            hn::IfThenElse(hn::Eq(e, hn::Zero(w)), hn::Set(w, 0x00200000), hn::Set(w, 0x00400000));
        d = hn::BitCast(DFloats(), hn::IfThenElse(hn::Gt(hn::Set(w, 2), e), small, normal));
    }
    HWY_INLINE Words quad(int j) const { return LookedUp(kValues, HalfBytes(block, 0, j)); }
};

// --- Blocks of 256 numbers: eight groups.

struct K {
    static constexpr int64_t kGroups = 8;
    Block block{};
    int64_t g = 0;
    Floats d, dmin;
    HWY_INLINE void group(int64_t i) { g = i; }
    HWY_INLINE static Floats minimum(int) { return hn::Zero(DFloats()); }
};

// Q4_K and Q5_K: a scale and a minimum of six bits for each group.
struct SixBits : K {
    static constexpr int kScales = 1;
    static constexpr int kMinimums = 1;
    static constexpr int kZero = 0;
    Words scales[2], minimums[2];  // dwords of four groups

    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = LowerF16(b.dword(0));
        dmin = UpperF16(b.dword(0));
        const Words x = b.dword(1), y = b.dword(2), z = b.dword(3);
        scales[0] = Masked(x, 0x3f);
        minimums[0] = Masked(y, 0x3f);
        scales[1] = hn::Or(Masked(z, 0x0f), Masked(Right(x, 2), 0x30));
        minimums[1] = hn::Or(Masked(Right(z, 4), 0x0f), Masked(Right(y, 2), 0x30));
    }
    HWY_INLINE Floats scale(int) const { return Times(d, ByteOf(scales[g / 4], g % 4)); }
    HWY_INLINE Floats minimum(int) const { return Times(dmin, ByteOf(minimums[g / 4], g % 4)); }
    // Two groups share 32 bytes.
    HWY_INLINE Words four_bits(int64_t first, int j) const {
        return Masked(Right(block.dword(first + g / 2 * 8 + j), 4 * (g % 2)), 0x0f);
    }
};

struct Q4K : SixBits {
    static constexpr ggml_type kType = GGML_TYPE_Q4_K;
    static constexpr int kMost = 15;
    static constexpr size_t kBytes = 144;
    HWY_INLINE Words quad(int j) const { return four_bits(4, j); }
};

struct Q5K : SixBits {
    static constexpr ggml_type kType = GGML_TYPE_Q5_K;
    static constexpr int kMost = 31;
    static constexpr size_t kBytes = 176;
    HWY_INLINE Words quad(int j) const {
        return hn::Or(four_bits(12, j), Masked(Moved(block.dword(4 + j), g, 4), 0x10));
    }
};

struct Q6K : K {
    static constexpr ggml_type kType = GGML_TYPE_Q6_K;
    static constexpr int kMost = 63;
    static constexpr size_t kBytes = 210;
    static constexpr int kScales = 2;
    static constexpr int kMinimums = 0;
    static constexpr int kZero = 32;
    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = b.half();
    }
    // Signed bytes.
    HWY_INLINE Floats scale(int h) const {
        const int64_t s = 2 * g + h;
        const auto x = hn::ShiftLeftSame(block.dword(48 + s / 4), static_cast<int>(24 - 8 * (s % 4)));
        return hn::Mul(d, hn::ConvertTo(DFloats(), hn::ShiftRight<24>(hn::BitCast(DInts(), x))));
    }
    HWY_INLINE Words quad(int j) const {
        const int64_t part = g / 4, in_part = g % 4;
        const Words low = Right(block.dword(part * 16 + in_part % 2 * 8 + j), in_part / 2 * 4),
                    high = Moved(block.dword(32 + part * 8 + j), 2 * in_part, 4);
        return hn::Or(Masked(low, 0x0f), Masked(high, 0x30));
    }
};

struct Q3K : K {
    static constexpr ggml_type kType = GGML_TYPE_Q3_K;
    static constexpr int kMost = 7;
    static constexpr size_t kBytes = 110;
    static constexpr int kScales = 2;
    static constexpr int kMinimums = 0;
    static constexpr int kZero = 4;
    Words scales[4];  // dwords of four scales
    // Four lower bits of each byte, and two upper ones that begin at bit `bits`.
    HWY_INLINE static Words joined(Words lower, Words upper, int64_t bits) {
        return hn::Or(Masked(lower, 0x0f), Masked(Moved(upper, bits, 4), 0x30));
    }
    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = b.half();
        const Words x = b.dword(24), y = b.dword(25), z = b.dword(26);
        scales[0] = joined(x, z, 0);
        scales[1] = joined(y, z, 2);
        scales[2] = joined(Right(x, 4), z, 4);
        scales[3] = joined(Right(y, 4), z, 6);
    }
    HWY_INLINE Floats scale(int h) const {
        const int64_t s = 2 * g + h;
        return Times(d, Minus(ByteOf(scales[s / 4], s % 4), 32));
    }
    HWY_INLINE Words quad(int j) const {
        const Words low = Right(block.dword(8 + g / 4 * 8 + j), 2 * (g % 4)),
                    high = Moved(block.dword(j), g, 2);
        return hn::Or(Masked(low, 0x03), Masked(high, 0x04));
    }
};

// A number of two bits times the scale of its half, of four bits, is a byte still, so a group has one scale.
struct Q2K : K {
    static constexpr ggml_type kType = GGML_TYPE_Q2_K;
    static constexpr int kMost = 45;
    static constexpr size_t kBytes = 84;
    static constexpr int kScales = 1;
    static constexpr int kMinimums = 2;
    static constexpr int kZero = 0;
    Words scales[2];  // of the halves, in both 16 bits of a dword
    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = LowerF16(b.dword(20));
        dmin = UpperF16(b.dword(20));
    }
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        for (int h = 0; h < 2; ++h) {
            const Words x = Masked(scale_byte(h), 0x0f);
            scales[h] = hn::Or(x, hn::ShiftLeft<16>(x));
        }
    }
    HWY_INLINE Words scale_byte(int h) const { return ByteOf(block.dword((2 * g + h) / 4), (2 * g + h) % 4); }
    HWY_INLINE Floats scale(int) const { return d; }
    HWY_INLINE Floats minimum(int h) const { return Times(dmin, hn::ShiftRight<4>(scale_byte(h))); }
    HWY_INLINE Words quad(int j) const {
        const hn::Repartition<uint16_t, DWords> pairs;
        const Words x = Masked(Right(block.dword(4 + g / 4 * 8 + j), 2 * (g % 4)), 0x03);
        return hn::BitCast(DWords(), hn::Mul(hn::BitCast(pairs, x), hn::BitCast(pairs, scales[j / 4])));
    }
};

struct Iq4Xs : K {
    static constexpr ggml_type kType = GGML_TYPE_IQ4_XS;
    static constexpr int kMost = 255;
    static constexpr size_t kBytes = 136;
    static constexpr int kScales = 1;
    static constexpr int kMinimums = 0;
    static constexpr int kZero = 128;
    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = LowerF16(b.dword(0));
    }
    HWY_INLINE Floats scale(int) const {
        const auto low = hn::And(Right(block.dword(1), 4 * g), hn::Set(DWords(), 0x0f)),
                   high = hn::And(Right(block.dword(0), 16 + 2 * g), hn::Set(DWords(), 3));
        return Times(d, Minus(hn::Or(low, hn::ShiftLeft<4>(high)), 32));
    }
    HWY_INLINE Words quad(int j) const { return LookedUp(kIq4Values, HalfBytes(block, 2 + 4 * g, j)); }
};

}  // namespace
}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif
