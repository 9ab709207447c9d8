// How IQ1, IQ2 and IQ3 are read from a panel, as row_panel_types-inl.h says; included once per Highway
// target, of those with AVX-512 VBMI. Their codes stand for eight or four numbers at once
// (row_panel_grids.h). Codes of up to ten bits are looked up in registers, sixty-four at a time, IQ1's are
// gathered from memory. Other CPUs would have to gather them all, which is slower than ggml's kernels.
#if defined(REFOLD_ROW_PANEL_GRIDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFOLD_ROW_PANEL_GRIDS_INL_H_
#undef REFOLD_ROW_PANEL_GRIDS_INL_H_
#else
#define REFOLD_ROW_PANEL_GRIDS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "engine/ggml/row_panel_grids.h"
#include "engine/ggml/row_panel_types-inl.h"
#include "engine/ggml/vnni-inl.h"

#if REFOLD_HAS_VNNI
HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {
namespace {

HWY_INLINE Words Bits(Words x, int64_t first, int count) {
    return hn::And(Right(x, first), hn::Set(DWords(), (1U << count) - 1));
}
HWY_INLINE Words Joined(Words x, Words y) { return hn::Or(x, y); }
template <class... More>
HWY_INLINE Words Joined(Words x, Words y, More... more) {
    return hn::Or(x, Joined(y, more...));
}
HWY_INLINE Words Only(Words x, uint32_t bits) { return hn::And(x, hn::Set(DWords(), bits)); }
// Fields of `width` bits that follow each other, the first four, as bytes.
template <int width>
HWY_INLINE Words AsBytes(Words x) {
    constexpr uint32_t kOnes = (1U << width) - 1;
    return Joined(Only(x, kOnes), Only(hn::ShiftLeft<8 - width>(x), kOnes << 8),
                  Only(hn::ShiftLeft<2 * (8 - width)>(x), kOnes << 16),
                  Only(hn::ShiftLeft<3 * (8 - width)>(x), kOnes << 24));
}

template <ggml_type type>
struct GridType : K {
    static constexpr ggml_type kType = type;
    static constexpr int kMost = 127;
    static constexpr int kMinimums = 0;

    // Byte i, and half-byte i, of what begins at a dword.
    HWY_INLINE Words byte(int64_t first, int64_t i) const {
        return ByteOf(block.dword(first + i / 4), i % 4);
    }
    HWY_INLINE Words half_byte(int64_t first, int64_t i) const {
        return Bits(block.dword(first + i / 8), 4 * (i % 8), 4);
    }
    // d * (2 s + 1).
    HWY_INLINE Floats odd_scale(Words s) const {
        return Times(d, hn::Add(hn::Add(s, s), hn::Set(DWords(), 1)));
    }
};

// Bits of `x` from bit `first` of each dword on, `step` further for each byte; more bits follow.
HWY_INLINE Words Spread(Words x, int first, int step) {
    alignas(8) uint8_t places[8];
    for (int i = 0; i < 8; ++i) places[i] = static_cast<uint8_t>(first + i % 4 * step + i / 4 * 32);
    uint64_t all;
    memcpy(&all, places, sizeof(all));
    return Words{_mm512_multishift_epi64_epi8(_mm512_set1_epi64(static_cast<int64_t>(all)), x.raw)};
}

// The byte of a table for each code.
template <int codes>
HWY_INLINE __m512i InRegisters(const uint8_t* table, __m512i low, __m512i high) {
    if constexpr (codes == 256) {
        const auto half = [&](int i) {
            return _mm512_permutex2var_epi8(_mm512_loadu_si512(table + i * 128), low,
                                            _mm512_loadu_si512(table + i * 128 + 64));
        };
        return _mm512_mask_blend_epi8(_mm512_movepi8_mask(low), half(0), half(1));
    } else {
        const __m512i bit = _mm512_set1_epi8(codes / 512);
        return _mm512_mask_blend_epi8(_mm512_test_epi8_mask(high, bit),
                                      InRegisters<codes / 2>(table, low, high),
                                      InRegisters<codes / 2>(table + codes / 2, low, high));
    }
}

template <ggml_type type, int codes>
class EightColumns {
public:
    HWY_INLINE void look_up(Words low, Words high) {
        for (int i = 0; i < 2; ++i)
            halves_[i] = Words{InRegisters<codes>(planes_ + i * codes, low.raw, high.raw)};
    }
    HWY_INLINE Words quad(int j) const { return Masked(Spread(halves_[j % 2], j / 2 * 8, 2), 3); }

private:
    const uint8_t* planes_ = row_panels::grid_of(type).planes.data();
    Words halves_[2];
};

template <ggml_type type, int codes>
class FourColumns {
public:
    HWY_INLINE void look_up(int half, Words low, Words high) {
        for (int i = 0; i < 2; ++i)
            planes_of_[half][i] = Words{InRegisters<codes>(planes_ + i * codes, low.raw, high.raw)};
    }
    HWY_INLINE Words quad(int j) const {
        const Words x = hn::Or(Masked(Spread(planes_of_[j / 4][0], j % 4 * 8, 2), 3),
                               Masked(Spread(hn::ShiftLeft<2>(planes_of_[j / 4][1]), j % 4 * 8, 1), 4));
        return LookedUp(kNumbers, x);
    }

private:
    static constexpr auto& kOf =
        type == GGML_TYPE_IQ3_S ? row_panels::kIq3SNumbers : row_panels::kIq3XxsNumbers;
    alignas(16) static constexpr uint8_t kNumbers[16] = {kOf[0], kOf[1], kOf[2], kOf[3],
                                                         kOf[4], kOf[5], kOf[6], kOf[7]};
    const uint8_t* planes_ = row_panels::grid_of(type).planes.data();
    Words planes_of_[2][2];
};

// --- IQ2 and IQ3: magnitudes, and a bit for each sign, which a byte of `signs` holds for eight columns.

template <ggml_type type>
struct Signed : GridType<type> {
    static constexpr int kZero = 64;
    Words signs;

    // Seven bits in each byte; the eighth makes their number even.
    HWY_INLINE static Words Even(Words sevens) {
        const auto ones = hn::PopulationCount(hn::BitCast(DBytes(), sevens));
        return hn::Or(sevens, hn::ShiftLeft<7>(Masked(hn::BitCast(DWords(), ones), 1)));
    }
    HWY_INLINE Words with_signs(Words magnitudes, int j) const {
        const DBytes b;
        const auto x = hn::BitCast(b, magnitudes), zero = hn::Set(b, kZero);
        return hn::BitCast(DWords(),
                           hn::IfThenElse(BitsOfQuad(signs, j), hn::Sub(zero, x), hn::Add(zero, x)));
    }
};

alignas(16) constexpr uint8_t kIq2Magnitudes[16] = {row_panels::kIq2Numbers[0], row_panels::kIq2Numbers[1],
                                                    row_panels::kIq2Numbers[2]};

template <ggml_type type, int codes>
struct Iq2 : Signed<type> {
    EightColumns<type, codes> columns;

    HWY_INLINE void enter(const Block& b) {
        this->block = b;
        this->d = hn::Mul(b.half(), hn::Set(DFloats(), 0.125F));
    }
    HWY_INLINE Words quad(int j) const {
        return this->with_signs(LookedUp(kIq2Magnitudes, columns.quad(j)), j);
    }
};

struct Iq2Xxs : Iq2<GGML_TYPE_IQ2_XXS, 256> {
    static constexpr size_t kBytes = 66;
    static constexpr int kScales = 1;
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        signs = Even(AsBytes<7>(block.dword(2 * g + 1)));
        columns.look_up(block.dword(2 * g), hn::Zero(DWords()));
    }
    HWY_INLINE Floats scale(int) const { return odd_scale(hn::ShiftRight<28>(block.dword(2 * g + 1))); }
};

struct Iq2Xs : Iq2<GGML_TYPE_IQ2_XS, 512> {
    static constexpr size_t kBytes = 74;
    static constexpr int kScales = 2;
    // Nine bits of a code and seven of signs.
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        const Words x = block.dword(2 * g), y = block.dword(2 * g + 1);
        const Words low = Joined(Only(x, 0xff), Only(hn::ShiftRight<8>(x), 0xff00),
                                 Only(hn::ShiftLeft<16>(y), 0xff0000), Only(hn::ShiftLeft<8>(y), 0xff000000)),
                    high = Joined(Only(hn::ShiftRight<8>(x), 0xff), Only(hn::ShiftRight<16>(x), 0xff00),
                                  Only(hn::ShiftLeft<8>(y), 0xff0000), Only(y, 0xff000000));
        signs = Even(Masked(hn::ShiftRight<1>(high), 0x7f));
        columns.look_up(low, Masked(high, 1));
    }
    HWY_INLINE Floats scale(int h) const { return odd_scale(half_byte(16, 2 * g + h)); }
};

struct Iq2S : Iq2<GGML_TYPE_IQ2_S, 1024> {
    static constexpr size_t kBytes = 82;
    static constexpr int kScales = 2;
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        signs = block.dword(8 + g);
        columns.look_up(block.dword(g), AsBytes<2>(byte(16, g)));
    }
    HWY_INLINE Floats scale(int h) const { return odd_scale(half_byte(18, 2 * g + h)); }
};

struct Iq3Xxs : Signed<GGML_TYPE_IQ3_XXS> {
    static constexpr size_t kBytes = 98;
    static constexpr int kScales = 1;
    FourColumns<GGML_TYPE_IQ3_XXS, 256> columns;
    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = hn::Mul(b.half(), hn::Set(DFloats(), 0.25F));
    }
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        signs = Even(AsBytes<7>(block.dword(16 + g)));
        for (int h = 0; h < 2; ++h) columns.look_up(h, block.dword(2 * g + h), hn::Zero(DWords()));
    }
    HWY_INLINE Floats scale(int) const { return odd_scale(hn::ShiftRight<28>(block.dword(16 + g))); }
    HWY_INLINE Words quad(int j) const { return with_signs(columns.quad(j), j); }
};

struct Iq3S : Signed<GGML_TYPE_IQ3_S> {
    static constexpr size_t kBytes = 110;
    static constexpr int kScales = 1;
    FourColumns<GGML_TYPE_IQ3_S, 512> columns;
    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = b.half();
    }
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        signs = block.dword(18 + g);
        for (int h = 0; h < 2; ++h)
            columns.look_up(h, block.dword(2 * g + h), AsBytes<1>(Right(byte(16, g), 4 * h)));
    }
    HWY_INLINE Floats scale(int) const { return odd_scale(half_byte(26, g)); }
    HWY_INLINE Words quad(int j) const { return with_signs(columns.quad(j), j); }
};

// --- IQ1: -1, 0 or 1, all of eight columns shifted by 1/8 or -1/8, as the upper one of a code's twelve bits
// says. In eighths these are whole numbers.

// Which of a grid's numbers, of eight columns each, four codes stand for. Lower and upper bits of the codes
// are bytes.
template <ggml_type type>
class Gathered {
public:
    HWY_INLINE void look_up(Words low, Words high) {
        for (int l = 0; l < 4; ++l) {
            const Words code = hn::Or(ByteOf(low, l), hn::ShiftLeft<8>(ByteOf(high, l)));
            four_[l] = hn::GatherIndex(DWords(), entries_, hn::BitCast(DInts(), code));
        }
    }
    HWY_INLINE Words quad(int j) const { return HalfOf(four_[j / 2], j % 2); }

private:
    const uint32_t* entries_ = row_panels::grid_of(type).entries.data();
    Words four_[4];
};

alignas(16) constexpr uint8_t kIq1Bytes[16] = {
    16 + row_panels::kIq1Numbers[0], 16 + row_panels::kIq1Numbers[1], 16 + row_panels::kIq1Numbers[2],
    16 + row_panels::kIq1Numbers[3], 16 + row_panels::kIq1Numbers[4], 16 + row_panels::kIq1Numbers[5]};

template <ggml_type type>
struct Iq1 : GridType<type> {
    static constexpr int kZero = 16;
    Gathered<type> columns;
    HWY_INLINE Words quad(int j) const { return LookedUp(kIq1Bytes, columns.quad(j)); }
};

struct Iq1S : Iq1<GGML_TYPE_IQ1_S> {
    static constexpr size_t kBytes = 50;
    static constexpr int kScales = 1;
    Words upper;  // three bits for each code, three of the scale, and the shift of the group
    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = hn::Mul(b.half(), hn::Set(DFloats(), 0.125F));
    }
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        upper = Right(block.dword(8 + g / 2), 16 * (g % 2));
        const auto shift = hn::BroadcastSignBit(hn::BitCast(DInts(), hn::ShiftLeft<16>(upper)));
        columns.look_up(block.dword(g), hn::Or(AsBytes<3>(upper), Masked(hn::BitCast(DWords(), shift), 8)));
    }
    HWY_INLINE Floats scale(int) const { return odd_scale(Bits(upper, 12, 3)); }
};

struct Iq1M : Iq1<GGML_TYPE_IQ1_M> {
    static constexpr size_t kBytes = 56;
    static constexpr int kScales = 2;
    // Four bits of the F16 scale are the upper ones of each 16 that hold four scales of three bits.
    HWY_INLINE void enter(const Block& b) {
        block = b;
        const Words x = b.dword(12), y = b.dword(13);
        const Words bits = Joined(Bits(x, 12, 4), Only(hn::ShiftRight<24>(x), 0xf0),
                                  Only(hn::ShiftRight<4>(y), 0xf00), Only(hn::ShiftRight<16>(y), 0xf000));
        d = hn::Mul(LowerF16(bits), hn::Set(DFloats(), 0.125F));
    }
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        columns.look_up(block.dword(g), AsBytes<4>(Right(block.dword(8 + g / 2), 16 * (g % 2))));
    }
    HWY_INLINE Floats scale(int h) const {
        return odd_scale(Bits(block.dword(12 + g / 4), 16 * (g / 2 % 2) + 6 * (g % 2) + 3 * h, 3));
    }
};

}  // namespace
}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif
