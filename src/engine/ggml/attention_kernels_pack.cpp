// Packs cached rows of one KV head for the tile kernels (attention_kernels_tiles.h).
//
// In: [row][head_dim] of any RowType. Out, F32: keys in panels [panel][head_dim][kPanel], zeros after the
// last row; values [row][width], zeros after head_dim. One thread; every cached row is read once, in order.
//
// Keys are transposed in squares of as many rows as a vector has lanes, within registers, so that memory is
// read and written in whole vectors only.
#include "engine/ggml/attention_kernels_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ggml/attention_kernels_pack.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include "engine/ggml/attention_kernels-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

using attention::kPanel;

#if HWY_TARGET == HWY_SCALAR
static HWY_INLINE void Transpose(hn::Vec<D>*) {}
#else
// One of log2(kLanes) rounds: the lowest bit of an element's lane index becomes the top bit of its vector
// index, the lowest bit of its vector index the top bit of its lane index.
static HWY_INLINE void TransposeRound(hn::Vec<D>* square) {
    const D d;
    hn::Vec<D> moved[kLanes];
    for (int64_t i = 0; i < kLanes / 2; ++i) {
        moved[i] = hn::ConcatEven(d, square[2 * i + 1], square[2 * i]);
        moved[i + kLanes / 2] = hn::ConcatOdd(d, square[2 * i + 1], square[2 * i]);
    }
    for (int64_t i = 0; i < kLanes; ++i) square[i] = moved[i];
}

// Transposes kLanes vectors of kLanes lanes. Unrolled: in a loop they would not stay in registers.
static HWY_INLINE void Transpose(hn::Vec<D>* square) {
    static_assert(kLanes <= 16);
    if constexpr (kLanes >= 2) TransposeRound(square);
    if constexpr (kLanes >= 4) TransposeRound(square);
    if constexpr (kLanes >= 8) TransposeRound(square);
    if constexpr (kLanes >= 16) TransposeRound(square);
}
#endif

// Lanes [0, count), zeros after them.
template <typename T>
static HWY_INLINE hn::Vec<D> LoadSome(D d, const T* from, int64_t count) {
    if (count >= kLanes) return LoadFloats(d, from);
    T some[kLanes] = {};
    std::copy_n(from, count, some);
    return LoadFloats(d, some);
}
// Rows are whole blocks, so that there are all lanes, or none after the row.
template <int kBits>
static HWY_INLINE hn::Vec<D> LoadSome(D d, Blocks<kBits> from, int64_t count) {
    return count >= kLanes ? LoadFloats(d, from) : hn::Zero(d);
}

template <typename T>
static void PackKeysOfType(const CachedRows& rows, float* panels) {
    const D d;
    for (int64_t first = 0; first < rows.count; first += kLanes) {
        float* to = panels + first / kPanel * kPanel * rows.head_dim + first % kPanel;
        for (int64_t c = 0; c < rows.head_dim; c += kLanes) {
            const int64_t columns = std::min(kLanes, rows.head_dim - c);
            hn::Vec<D> square[kLanes];
            for (int64_t i = 0; i < kLanes; ++i) {
                square[i] =
                    first + i < rows.count ? LoadSome(d, Row<T>(rows, first + i) + c, columns) : hn::Zero(d);
            }
            Transpose(square);
            for (int64_t i = 0; i < columns; ++i) hn::StoreU(square[i], d, to + (c + i) * kPanel);
        }
    }
    // Zeros in the rest of the last panel.
    for (int64_t first = (rows.count + kLanes - 1) / kLanes * kLanes; first % kPanel != 0; first += kLanes) {
        float* to = panels + first / kPanel * kPanel * rows.head_dim + first % kPanel;
        for (int64_t c = 0; c < rows.head_dim; ++c) hn::StoreU(hn::Zero(d), d, to + c * kPanel);
    }
}

template <typename T>
static void PackValuesOfType(const CachedRows& rows, int64_t width, float* values) {
    const D d;
    for (int64_t i = 0; i < rows.count; ++i) {
        const auto row = Row<T>(rows, i);
        for (int64_t c = 0; c < width; c += kLanes) {
            const int64_t columns = std::clamp<int64_t>(rows.head_dim - c, 0, kLanes);
            hn::StoreU(LoadSome(d, row + c, columns), d, values + i * width + c);
        }
    }
}

static void PackKeys(const CachedRows& rows, float* panels) {
    OfType(rows.type, [&]<typename T>() { PackKeysOfType<T>(rows, panels); });
}

static void PackValues(const CachedRows& rows, int64_t width, float* values) {
    OfType(rows.type, [&]<typename T>() { PackValuesOfType<T>(rows, width, values); });
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(PackKeys);
HWY_EXPORT(PackValues);

namespace attention {

void pack_keys(const CachedRows& rows, float* panels) { HWY_DYNAMIC_DISPATCH(PackKeys)(rows, panels); }

void pack_values(const CachedRows& rows, int64_t width, float* values) {
    HWY_DYNAMIC_DISPATCH(PackValues)(rows, width, values);
}

}  // namespace attention
}  // namespace refold
#endif
