// Vector functions that the attention kernels share; included once per Highway target.
#if defined(REFOLD_ATTENTION_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFOLD_ATTENTION_KERNELS_INL_H_
#undef REFOLD_ATTENTION_KERNELS_INL_H_
#else
#define REFOLD_ATTENTION_KERNELS_INL_H_
#endif

// clang-format off
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/ggml/attention_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using attention::CachedRows;
using attention::RowRange;
using attention::ScoreRules;
constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(D()));

[[maybe_unused]] static HWY_INLINE hn::Vec<D> LoadFloats(D d, const float* from) {
    return hn::LoadU(d, from);
}
[[maybe_unused]] static HWY_INLINE hn::Vec<D> LoadFloats(D d, const hwy::float16_t* from) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), from));
}
[[maybe_unused]] static HWY_INLINE void StoreFloats(D d, hn::Vec<D> x, float* to) { hn::StoreU(x, d, to); }
[[maybe_unused]] static HWY_INLINE void StoreScalar(float x, float* to) { *to = x; }
// Highway's type of half precision is another one on each architecture.
[[maybe_unused]] static HWY_INLINE void StoreScalar(float x, hwy::float16_t* to) {
    const ggml_fp16_t half = ggml_fp32_to_fp16(x);
    memcpy(to, &half, sizeof(half));
}
[[maybe_unused]] static HWY_INLINE void StoreFloats(D d, hn::Vec<D> x, hwy::float16_t* to) {
#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SCALAR
    // Without a conversion instruction Highway truncates instead of rounding.
    float all[kLanes];
    hn::StoreU(x, d, all);
    for (int64_t i = 0; i < kLanes; ++i) StoreScalar(all[i], to + i);
#else
    const hn::Rebind<hwy::float16_t, D> half;
    hn::StoreU(hn::DemoteTo(half, x), half, to);
    (void)d;
#endif
}
[[maybe_unused]] static HWY_INLINE float Scalar(const float* from) { return *from; }
[[maybe_unused]] static HWY_INLINE float Scalar(const hwy::float16_t* from) {
    ggml_fp16_t half;
    memcpy(&half, from, sizeof(half));
    return ggml_fp16_to_fp32(half);
}

// A place in a row of Q8_0 or Q4_0 blocks.
template <int kBits>
struct Blocks {
    static constexpr int64_t kBytes = 2 + attention::kRowBlock * kBits / 8;
    const char* row;
    int64_t column;

    Blocks operator+(int64_t columns) const { return {row, column + columns}; }
    const char* block() const { return row + column / attention::kRowBlock * kBytes; }
    // Of a place in a block of Q8_0.
    const int8_t* quants() const {
        return reinterpret_cast<const int8_t*>(block() + 2) + column % attention::kRowBlock;
    }
    // In all lanes. A call of ggml's conversion would take longer than the block.
    HWY_INLINE hn::Vec<D> scale() const {
        uint16_t half;
        memcpy(&half, block(), sizeof(half));
        const hn::Rebind<hwy::float16_t, D> halves;
        const hn::Rebind<uint16_t, D> bits;
        return hn::PromoteTo(D(), hn::BitCast(halves, hn::Set(bits, half)));
    }
};
using Q8Blocks = Blocks<8>;
using Q4Blocks = Blocks<4>;

// Vectors of numbers do not go beyond a block: both are powers of two.
static_assert(attention::kRowBlock % kLanes == 0);
[[maybe_unused]] static HWY_INLINE hn::Vec<D> LoadFloats(D d, Q8Blocks from) {
    const hn::Rebind<int8_t, D> bytes;
    const hn::RebindToSigned<D> words;
    const auto x = hn::ConvertTo(d, hn::PromoteTo(words, hn::LoadU(bytes, from.quants())));
    return hn::Mul(x, from.scale());
}
[[maybe_unused]] static HWY_INLINE hn::Vec<D> LoadFloats(D d, Q4Blocks from) {
    // Columns 0 to 15 are the lower halves of the bytes, 16 to 31 the upper ones.
    constexpr int64_t kHalf = attention::kRowBlock / 2;
    const hn::Rebind<uint8_t, D> bytes;
    const hn::RebindToSigned<D> words;
    const int64_t column = from.column % attention::kRowBlock;
    const auto* quants = reinterpret_cast<const uint8_t*>(from.block() + 2) + column % kHalf;
    const auto both = hn::PromoteTo(words, hn::LoadU(bytes, quants));
    const auto four = column < kHalf ? hn::And(both, hn::Set(words, 15)) : hn::ShiftRight<4>(both);
    return hn::Mul(hn::ConvertTo(d, hn::Sub(four, hn::Set(words, 8))), from.scale());
}
// Not called: rows are whole blocks.
template <int kBits>
[[maybe_unused]] static HWY_INLINE float Scalar(Blocks<kBits>) {
    return 0;
}

// Row i: a pointer to numbers, or a place in blocks.
template <typename T>
static HWY_INLINE auto Row(const CachedRows& rows, int64_t i) {
    const char* row = static_cast<const char*>(rows.data) + static_cast<size_t>(i) * rows.stride;
    if constexpr (std::is_same_v<T, Q8Blocks> || std::is_same_v<T, Q4Blocks>)
        return T{row, 0};
    else
        return reinterpret_cast<const T*>(row);
}

// Calls function.template operator()<T>() with the type of the rows.
template <class Function>
static HWY_INLINE void OfType(attention::RowType type, const Function& function) {
    switch (type) {
        case attention::RowType::f32: return function.template operator()<float>();
        case attention::RowType::f16: return function.template operator()<hwy::float16_t>();
        case attention::RowType::q8_0: return function.template operator()<Q8Blocks>();
        case attention::RowType::q4_0: return function.template operator()<Q4Blocks>();
    }
}

#if HWY_TARGET == HWY_SCALAR
[[maybe_unused]] static HWY_INLINE void Transpose(hn::Vec<D>*) {}
#else
// One of log2(kLanes) rounds: the lowest bit of an element's lane index becomes the top bit of its vector
// index, the lowest bit of its vector index the top bit of its lane index.
[[maybe_unused]] static HWY_INLINE void TransposeRound(hn::Vec<D>* square) {
    const D d;
    hn::Vec<D> moved[kLanes];
    for (int64_t i = 0; i < kLanes / 2; ++i) {
        moved[i] = hn::ConcatEven(d, square[2 * i + 1], square[2 * i]);
        moved[i + kLanes / 2] = hn::ConcatOdd(d, square[2 * i + 1], square[2 * i]);
    }
    for (int64_t i = 0; i < kLanes; ++i) square[i] = moved[i];
}

// Transposes kLanes vectors of kLanes lanes. Unrolled: in a loop they would not stay in registers.
[[maybe_unused]] static HWY_INLINE void Transpose(hn::Vec<D>* square) {
    static_assert(kLanes <= 16);
    if constexpr (kLanes >= 2) TransposeRound(square);
    if constexpr (kLanes >= 4) TransposeRound(square);
    if constexpr (kLanes >= 8) TransposeRound(square);
    if constexpr (kLanes >= 16) TransposeRound(square);
}
#endif

// Lanes [0, count), zeros after them.
template <typename T>
[[maybe_unused]] static HWY_INLINE hn::Vec<D> LoadSome(D d, const T* from, int64_t count) {
    if (count >= kLanes) return LoadFloats(d, from);
    T some[kLanes] = {};
    std::copy_n(from, count, some);
    return LoadFloats(d, some);
}
// Rows are whole blocks, so that there are all lanes, or none after the row.
template <int kBits>
[[maybe_unused]] static HWY_INLINE hn::Vec<D> LoadSome(D d, Blocks<kBits> from, int64_t count) {
    return count >= kLanes ? LoadFloats(d, from) : hn::Zero(d);
}

// 2^x for x <= 0, to within 2e-7 of it; 0 for x <= -127. The integer part goes into the exponent, the
// fraction in [-1/2, 1/2] into a polynomial (minimax relative error among those that are 1 at 0).
static HWY_INLINE hn::Vec<D> Exp2(D d, hn::Vec<D> x) {
    const hn::RebindToSigned<D> bits;
    const auto round = hn::Set(d, 12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
    x = hn::Max(hn::Set(d, -127.0F), x);
    const auto whole = hn::Add(x, round);
    const auto fraction = hn::Sub(x, hn::Sub(whole, round));
    auto power = hn::Set(d, 0.001326472471F);
    power = hn::MulAdd(power, fraction, hn::Set(d, 0.009671512688F));
    power = hn::MulAdd(power, fraction, hn::Set(d, 0.055507337436F));
    power = hn::MulAdd(power, fraction, hn::Set(d, 0.240222420846F));
    power = hn::MulAdd(power, fraction, hn::Set(d, 0.693146977599F));
    power = hn::MulAdd(power, fraction, hn::Set(d, 1.0F));
    return hn::BitCast(d, hn::Add(hn::BitCast(bits, power), hn::ShiftLeft<23>(hn::BitCast(bits, whole))));
}

// The loops over whole vectors below also process the padding after `count`.

// x[i] = cap * tanh(x[i])
static HWY_INLINE void CapScores(float* x, int64_t count, float cap) {
    const D d;
    const auto factor = hn::Set(d, cap);
    for (int64_t i = 0; i < count; i += kLanes)
        hn::StoreU(hn::Mul(factor, hn::Tanh(d, hn::LoadU(d, x + i))), d, x + i);
}

// ALiBi: x[i] -= slope * (distance - i)
static HWY_INLINE void SubtractDistances(float* x, int64_t count, float slope, float distance) {
    const D d;
    const auto step = hn::Set(d, slope);
    for (int64_t i = 0; i < count; i += kLanes) {
        const auto ahead = hn::Sub(hn::Iota(d, static_cast<float>(i)), hn::Set(d, distance));
        hn::StoreU(hn::MulAdd(step, ahead, hn::LoadU(d, x + i)), d, x + i);
    }
}

// x[i] = 2^(x[i] - maximum); returns the sum.
static HWY_INLINE float Exponentials(float* x, int64_t count, float maximum) {
    const D d;
    const auto shift = hn::Set(d, maximum);
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < count; i += kLanes) {
        const auto e = Exp2(d, hn::Sub(hn::LoadU(d, x + i), shift));
        hn::StoreU(e, d, x + i);
        sum = hn::Add(sum, e);
    }
    return hn::GetLane(hn::SumOfLanes(d, sum));
}

// The largest x[i].
static HWY_INLINE float Largest(const float* x, int64_t count) {
    const D d;
    auto largest = hn::LoadU(d, x);
    for (int64_t i = kLanes; i < count; i += kLanes) largest = hn::Max(largest, hn::LoadU(d, x + i));
    return hn::GetLane(hn::MaxOfLanes(d, largest));
}

[[maybe_unused]] static HWY_INLINE float Power(float x) { return hn::GetLane(Exp2(D(), hn::Set(D(), x))); }

// Online softmax of one query row. Scores [lo, hi) of a tile, whole vectors, become weights relative to the
// largest score of the chunk so far, 0 outside [begin, end), which are the keys that the row sees.
// `distance`: ALiBi's of the tile's first key. Updates maximum and sum; returns the factor from the old
// maximum to the new one. Vectors beyond [begin, end) change nothing, as they add zeros.
[[maybe_unused]] static HWY_INLINE float SoftmaxOfTile(float* scores, RowRange vectors, RowRange seen,
                                                       float cap, const float* slope, int64_t distance,
                                                       float& maximum, float& sum) {
    constexpr float kMasked = -std::numeric_limits<float>::infinity();
    const auto [lo, hi] = vectors;
    if (cap > 0) CapScores(scores + lo, hi - lo, cap);
    if (slope != nullptr) SubtractDistances(scores + lo, hi - lo, *slope, static_cast<float>(distance - lo));
    std::fill(scores + lo, scores + seen.begin, kMasked);
    std::fill(scores + seen.end, scores + hi, kMasked);
    const float largest = Largest(scores + lo, hi - lo);
    float factor = 1;
    if (largest > maximum) {
        factor = Power(maximum - largest);
        maximum = largest;
    }
    sum = sum * factor + Exponentials(scores + lo, hi - lo, maximum);
    return factor;
}

// to[i] = factor * from[i], exactly `count` of them. May be in place.
template <typename From, typename To>
static HWY_INLINE void Scale(const From* from, int64_t count, float factor, To* to) {
    const D d;
    const auto f = hn::Set(d, factor);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) StoreFloats(d, hn::Mul(f, LoadFloats(d, from + i)), to + i);
    for (; i < count; ++i) StoreScalar(factor * Scalar(from + i), to + i);
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
