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
