// How IQ1, IQ2 and IQ3 are read from a panel, as row_panel_types-inl.h says; included once per Highway
// target. Their codes stand for eight or four numbers at once (row_panel_grids.h), which are looked up in
// memory.
#if defined(REFOLD_ROW_PANEL_GRIDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFOLD_ROW_PANEL_GRIDS_INL_H_
#undef REFOLD_ROW_PANEL_GRIDS_INL_H_
#else
#define REFOLD_ROW_PANEL_GRIDS_INL_H_
#endif

#include <hwy/highway.h>

#include "engine/ggml/row_panel_grids.h"
#include "engine/ggml/row_panel_types-inl.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {
namespace {

template <ggml_type type>
struct Grid : K {
    static constexpr ggml_type kType = type;
    static constexpr int kMinimums = 0;
    const uint32_t* entries = row_panels::grid_of(type);

    HWY_INLINE Words entry(Words code) const {
        return hn::GatherIndex(DWords(), entries, hn::BitCast(DInts(), code));
    }
    // Byte i, and half-byte i, of what begins at a dword.
    HWY_INLINE Words byte(int64_t first, int64_t i) const {
        return ByteOf(block.dword(first + i / 4), i % 4);
    }
    HWY_INLINE Words half_byte(int64_t first, int64_t i) const {
        return Bits(block.dword(first + i / 8), 4 * (i % 8), 4);
    }
    HWY_INLINE static Words Bits(Words x, int64_t first, int count) {
        return hn::And(Right(x, first), hn::Set(DWords(), (1U << count) - 1));
    }
    // d * (2 s + 1).
    HWY_INLINE Floats odd_scale(Words s) const {
        return Times(d, hn::Add(hn::Add(s, s), hn::Set(DWords(), 1)));
    }
};

// --- IQ2 and IQ3: magnitudes, and a bit for each sign, which a byte of `signs` holds for eight columns.

template <ggml_type type>
struct Signed : Grid<type> {
    static constexpr int kZero = 64;
    Words signs;

    // Seven bits in each byte; the eighth makes their number even.
    HWY_INLINE static Words Even(Words sevens) {
        const auto ones = hn::PopulationCount(hn::BitCast(DBytes(), sevens));
        return hn::Or(sevens, hn::ShiftLeft<7>(Masked(hn::BitCast(DWords(), ones), 1)));
    }
    // The same of four times seven bits that follow each other.
    HWY_INLINE static Words EvenOfPacked(Words x) {
        const DWords w;
        const auto low =
            hn::Or(hn::And(x, hn::Set(w, 0x7f)), hn::And(hn::ShiftLeft<1>(x), hn::Set(w, 0x7f00)));
        const auto high = hn::Or(hn::And(hn::ShiftLeft<2>(x), hn::Set(w, 0x7f0000)),
                                 hn::And(hn::ShiftLeft<3>(x), hn::Set(w, 0x7f000000)));
        return Even(hn::Or(low, high));
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

template <ggml_type type>
struct Iq2 : Signed<type> {
    Words four[4];  // entries of eight columns each

    HWY_INLINE void enter(const Block& b) {
        this->block = b;
        this->d = hn::Mul(b.half(), hn::Set(DFloats(), 0.125F));
    }
    HWY_INLINE Words quad(int j) const {
        return this->with_signs(LookedUp(kIq2Magnitudes, HalfOf(four[j / 2], j % 2)), j);
    }
};

struct Iq2Xxs : Iq2<GGML_TYPE_IQ2_XXS> {
    static constexpr size_t kBytes = 66;
    static constexpr int kScales = 1;
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        signs = EvenOfPacked(block.dword(2 * g + 1));
        for (int l = 0; l < 4; ++l) four[l] = entry(byte(2 * g, l));
    }
    HWY_INLINE Floats scale(int) const { return odd_scale(hn::ShiftRight<28>(block.dword(2 * g + 1))); }
};

struct Iq2Xs : Iq2<GGML_TYPE_IQ2_XS> {
    static constexpr size_t kBytes = 74;
    static constexpr int kScales = 2;
    // Nine bits of a code and seven of signs.
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        const DWords w;
        const Words x = block.dword(2 * g), y = block.dword(2 * g + 1);
        signs = Even(hn::Or(hn::Or(hn::And(hn::ShiftRight<9>(x), hn::Set(w, 0x7f)),
                                   hn::And(hn::ShiftRight<17>(x), hn::Set(w, 0x7f00))),
                            hn::Or(hn::And(hn::ShiftLeft<7>(y), hn::Set(w, 0x7f0000)),
                                   hn::And(hn::ShiftRight<1>(y), hn::Set(w, 0x7f000000)))));
        for (int l = 0; l < 4; ++l) four[l] = entry(Bits(l < 2 ? x : y, 16 * (l % 2), 9));
    }
    HWY_INLINE Floats scale(int h) const { return odd_scale(half_byte(16, 2 * g + h)); }
};

struct Iq2S : Iq2<GGML_TYPE_IQ2_S> {
    static constexpr size_t kBytes = 82;
    static constexpr int kScales = 2;
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        signs = block.dword(8 + g);
        const Words high = byte(16, g);
        for (int l = 0; l < 4; ++l)
            four[l] = entry(hn::Or(byte(g, l), hn::ShiftLeft<8>(Bits(high, 2 * l, 2))));
    }
    HWY_INLINE Floats scale(int h) const { return odd_scale(half_byte(18, 2 * g + h)); }
};

struct Iq3Xxs : Signed<GGML_TYPE_IQ3_XXS> {
    static constexpr size_t kBytes = 98;
    static constexpr int kScales = 1;
    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = hn::Mul(b.half(), hn::Set(DFloats(), 0.25F));
    }
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        signs = EvenOfPacked(block.dword(16 + g));
    }
    HWY_INLINE Floats scale(int) const { return odd_scale(hn::ShiftRight<28>(block.dword(16 + g))); }
    HWY_INLINE Words quad(int j) const { return with_signs(entry(byte(2 * g, j)), j); }
};

struct Iq3S : Signed<GGML_TYPE_IQ3_S> {
    static constexpr size_t kBytes = 110;
    static constexpr int kScales = 1;
    Words high;
    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = b.half();
    }
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        signs = block.dword(18 + g);
        high = byte(16, g);
    }
    HWY_INLINE Floats scale(int) const { return odd_scale(half_byte(26, g)); }
    HWY_INLINE Words quad(int j) const {
        return with_signs(entry(hn::Or(byte(2 * g, j), hn::ShiftLeft<8>(Bits(high, j, 1)))), j);
    }
};

// --- IQ1: -1, 0 or 1, all of eight columns shifted by 1/8 or -1/8. In eighths these are whole numbers.

template <ggml_type type>
struct Iq1 : Grid<type> {
    static constexpr int kZero = 16;
    Words four[4];

    // Three upper bits of a code begin at `bit`; bit `down` says that the shift is -1/8.
    HWY_INLINE Words entry_of(Words low, Words high, int bit, int down) const {
        const Words code = hn::Or(low, hn::ShiftLeft<8>(Grid<type>::Bits(high, bit, 3)));
        const auto all = hn::BroadcastSignBit(hn::BitCast(DInts(), hn::ShiftLeftSame(high, 31 - down)));
        return hn::Or(this->entry(code), hn::And(hn::BitCast(DWords(), all), hn::Set(DWords(), 0x88888888U)));
    }
    HWY_INLINE Words quad(int j) const {
        constexpr auto& n = row_panels::kIq1Numbers;
        alignas(16) static constexpr uint8_t kBytes[16] = {
            kZero + n[0],     kZero + n[1],     kZero + n[2],     0, 0, 0, 0, 0,
            kZero + n[0] - 2, kZero + n[1] - 2, kZero + n[2] - 2, 0, 0, 0, 0, 0};
        return LookedUp(kBytes, HalfOf(four[j / 2], j % 2));
    }
};

struct Iq1S : Iq1<GGML_TYPE_IQ1_S> {
    static constexpr size_t kBytes = 50;
    static constexpr int kScales = 1;
    Words high;
    HWY_INLINE void enter(const Block& b) {
        block = b;
        d = hn::Mul(b.half(), hn::Set(DFloats(), 0.125F));
    }
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        high = Right(block.dword(8 + g / 2), 16 * (g % 2));
        for (int l = 0; l < 4; ++l) four[l] = entry_of(byte(g, l), high, 3 * l, 15);
    }
    HWY_INLINE Floats scale(int) const { return odd_scale(Bits(high, 12, 3)); }
};

struct Iq1M : Iq1<GGML_TYPE_IQ1_M> {
    static constexpr size_t kBytes = 56;
    static constexpr int kScales = 2;
    // Four bits of the F16 scale are the upper ones of each 16 that hold four scales of three bits.
    HWY_INLINE void enter(const Block& b) {
        block = b;
        const DWords w;
        const Words x = b.dword(12), y = b.dword(13);
        const Words low = hn::Or(Bits(x, 12, 4), hn::And(hn::ShiftRight<24>(x), hn::Set(w, 0xf0))),
                    high = hn::Or(hn::And(hn::ShiftRight<4>(y), hn::Set(w, 0xf00)),
                                  hn::And(hn::ShiftRight<16>(y), hn::Set(w, 0xf000)));
        d = hn::Mul(LowerF16(hn::Or(low, high)), hn::Set(DFloats(), 0.125F));
    }
    HWY_INLINE void group(int64_t i) {
        K::group(i);
        const Words high = Right(block.dword(8 + g / 2), 16 * (g % 2));
        for (int l = 0; l < 4; ++l) four[l] = entry_of(byte(g, l), high, 4 * l, 4 * l + 3);
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
