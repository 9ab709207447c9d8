// Kernels over rows of factors for few tokens.
//
// In: weights [row][column] in F32, F16, BF16 or Q8_0 blocks; x F32 [token][column] (add_products) or
// [token][row] (add_weighted_rows). Out: F32 y [token][row] or [token][column], added to.
// One thread; the caller splits rows (add_products) or columns (add_weighted_rows).
//
// Rows are the outer loop and tokens the inner one, so that weights stream from memory once and a row is in
// the L1 cache for the second token.
//
// add_products: as many short rows as a vector has lanes are multiplied together, one accumulator each, and
// summed across lanes together; a horizontal sum per row would cost more than its product. Long rows go one
// at a time with four accumulators, which hide the latency of the multiply-adds. What a row gives does not
// depend on the rows, columns and tokens beside it.
//
// add_weighted_rows: y is the accumulator, in the L1 cache; four short rows together read and write it once.
// Long rows go one at a time, and the one four rows ahead is prefetched.
#include "engine/ggml/factor_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ggml/factor_kernels.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
// clang-format on

#include <ggml.h>

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using kernels::Rows;

static HWY_INLINE hn::Vec<D> LoadFloats(D d, const float* from) { return hn::LoadU(d, from); }
template <typename T>
static HWY_INLINE hn::Vec<D> LoadFloats(D d, const T* from) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), from));
}
static HWY_INLINE float Scalar(const float* from) { return *from; }
static HWY_INLINE float Scalar(const hwy::float16_t* from) {
    ggml_fp16_t half;  // Highway's type is another one on each architecture
    memcpy(&half, from, sizeof(half));
    return ggml_fp16_to_fp32(half);
}
static HWY_INLINE float Scalar(const hwy::bfloat16_t* from) { return ggml_bf16_to_fp32({from->bits}); }

template <typename T>
static const T* Row(const Rows& rows, int64_t i) {
    return reinterpret_cast<const T*>(static_cast<const char*>(rows.data) +
                                      static_cast<size_t>(i) * rows.stride);
}

#if HWY_TARGET == HWY_SCALAR
constexpr size_t kShortRows = 1;
static HWY_INLINE hn::Vec<D> SumsOf(D, hn::Vec<D>* sums) { return sums[0]; }
#else
constexpr size_t kShortRows = hn::MaxLanes(D());
// Lane i of the result is the sum of the lanes of sums[i]: adds neighbors until one vector is left.
static HWY_INLINE hn::Vec<D> SumsOf(D d, hn::Vec<D>* sums) {
    for (size_t n = kShortRows / 2; n > 0; n /= 2) {
        for (size_t i = 0; i < n; ++i) {
            const auto a = sums[2 * i], b = sums[2 * i + 1];
            sums[i] = hn::Add(hn::ConcatEven(d, b, a), hn::ConcatOdd(d, b, a));
        }
    }
    return sums[0];
}
#endif

// Lanes [0, count), zeros after them.
template <typename T>
static HWY_INLINE hn::Vec<D> LoadSome(D d, const T* from, int64_t count) {
    T some[hn::MaxLanes(D())] = {};
    std::copy_n(from, count, some);
    return LoadFloats(d, some);
}

// to[i] += lane i, for the first `count` of kShortRows lanes.
static HWY_INLINE void AddSome(hn::Vec<D> x, int64_t count, float* to) {
    const D d;
    if (count >= static_cast<int64_t>(kShortRows)) {
        hn::StoreU(hn::Add(hn::LoadU(d, to), x), d, to);
        return;
    }
    HWY_ALIGN float all[hn::MaxLanes(D())];
    hn::Store(x, d, all);
    for (int64_t i = 0; i < count; ++i) to[i] += all[i];
}

// kShortRows rows from `first` on, or as many as there are, for one token.
template <typename T>
static HWY_INLINE void AddShortProducts(const Rows& rows, int64_t first, const float* x, float* y) {
    const D d;
    const auto lanes = static_cast<int64_t>(kShortRows);
    const int64_t whole = rows.columns / lanes * lanes, rest = rows.columns - whole;
    const auto last = LoadSome(d, x + whole, rest);
    hn::Vec<D> sums[kShortRows];
    for (size_t n = 0; n < kShortRows; ++n) {
        const T* row = Row<T>(rows, std::min(first + static_cast<int64_t>(n), rows.count - 1));
        sums[n] = hn::Zero(d);
        for (int64_t c = 0; c < whole; c += lanes)
            sums[n] = hn::MulAdd(LoadFloats(d, row + c), hn::LoadU(d, x + c), sums[n]);
        if (rest > 0) sums[n] = hn::MulAdd(LoadSome(d, row + whole, rest), last, sums[n]);
    }
    AddSome(SumsOf(d, sums), rows.count - first, y + first);
}

// ggml's block of 32 numbers in Q8_0.
struct BlockQ8 {
    uint16_t scale;
    int8_t quants[32];
};
constexpr int64_t kBlock = 32;

static HWY_INLINE hn::Vec<D> LoadQuants(D d, const int8_t* from) {
    return hn::ConvertTo(d,
                         hn::PromoteTo(hn::Rebind<int32_t, D>(), hn::LoadU(hn::Rebind<int8_t, D>(), from)));
}

// The product of a row of blocks and x, not yet summed across lanes.
static HWY_INLINE hn::Vec<D> BlockSums(const BlockQ8* row, const float* x, int64_t blocks) {
    const D d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    auto sum = hn::Zero(d);
    for (int64_t b = 0; b < blocks; ++b, x += kBlock) {
        auto products = hn::Mul(LoadQuants(d, row[b].quants), hn::LoadU(d, x));
        for (int64_t c = lanes; c < kBlock; c += lanes)
            products = hn::MulAdd(LoadQuants(d, row[b].quants + c), hn::LoadU(d, x + c), products);
        sum = hn::MulAdd(hn::Set(d, ggml_fp16_to_fp32(row[b].scale)), products, sum);
    }
    return sum;
}

static void AddBlockProducts(const Rows& rows, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                             int64_t tokens) {
    const D d;
    const auto together = static_cast<int64_t>(kShortRows);
    const int64_t blocks = rows.columns / kBlock;
    for (int64_t i = 0; i < rows.count; i += together) {
        for (int64_t t = 0; t < tokens; ++t) {
            hn::Vec<D> sums[kShortRows];
            for (int64_t n = 0; n < together; ++n)
                sums[n] =
                    BlockSums(Row<BlockQ8>(rows, std::min(i + n, rows.count - 1)), x + t * x_stride, blocks);
            AddSome(SumsOf(d, sums), rows.count - i, y + t * y_stride + i);
        }
    }
}

// Four rows at a time, so that y is read and written once for all four.
static void AddWeightedBlocks(const Rows& rows, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                              int64_t tokens) {
    constexpr int64_t kRows = 4;
    const D d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (int64_t i = 0; i < rows.count; i += kRows) {
        const int64_t count = std::min(kRows, rows.count - i);
        for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t b = 0; b < rows.columns / kBlock; ++b) {
                float* to = y + t * y_stride + b * kBlock;
                float weights[kRows];
                for (int64_t n = 0; n < count; ++n)
                    weights[n] =
                        x[t * x_stride + i + n] * ggml_fp16_to_fp32(Row<BlockQ8>(rows, i + n)[b].scale);
                for (int64_t c = 0; c < kBlock; c += lanes) {
                    auto sum = hn::LoadU(d, to + c);
                    for (int64_t n = 0; n < count; ++n)
                        sum = hn::MulAdd(hn::Set(d, weights[n]),
                                         LoadQuants(d, Row<BlockQ8>(rows, i + n)[b].quants + c), sum);
                    hn::StoreU(sum, d, to + c);
                }
            }
        }
    }
}

// One long row at a time: memory is then read sequentially, which four interleaved rows would not be.
template <typename T>
static HWY_INLINE float LongProduct(const T* row, const float* x, int64_t columns) {
    constexpr int kSums = 4;
    const D d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    hn::Vec<D> sums[kSums];
    for (auto& sum : sums) sum = hn::Zero(d);
    int64_t c = 0;
    for (; c + kSums * lanes <= columns; c += kSums * lanes) {
        for (int64_t n = 0; n < kSums; ++n) {
            const int64_t i = c + n * lanes;
            sums[n] = hn::MulAdd(LoadFloats(d, row + i), hn::LoadU(d, x + i), sums[n]);
        }
    }
    for (; c + lanes <= columns; c += lanes)
        sums[0] = hn::MulAdd(LoadFloats(d, row + c), hn::LoadU(d, x + c), sums[0]);
    const auto all = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
    float sum = hn::GetLane(hn::SumOfLanes(d, all));
    for (; c < columns; ++c) sum += Scalar(row + c) * x[c];
    return sum;
}

template <typename T>
static void AddProductsOfType(const Rows& rows, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                              int64_t tokens) {
    constexpr int64_t kShort = 64, kTogether = kShortRows;
    const bool is_short = rows.columns <= kShort;
    for (int64_t i = 0; i < rows.count; i += is_short ? kTogether : 1) {
        for (int64_t t = 0; t < tokens; ++t) {
            if (is_short)
                AddShortProducts<T>(rows, i, x + t * x_stride, y + t * y_stride);
            else
                y[t * y_stride + i] += LongProduct(Row<T>(rows, i), x + t * x_stride, rows.columns);
        }
    }
}

// y[t] += sum of N weighted rows from `first` on, for all tokens.
template <int N, typename T>
static HWY_INLINE void AddWeighted(const Rows& rows, int64_t first, const float* x, int64_t x_stride,
                                   float* y, int64_t y_stride, int64_t tokens) {
    const D d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const int64_t whole = rows.columns / lanes * lanes;
    for (int64_t t = 0; t < tokens; ++t) {
        const float* weights = x + t * x_stride + first;
        float* sums = y + t * y_stride;
        const T* row[N];
        hn::Vec<D> weight[N];
        for (int n = 0; n < N; ++n) {
            row[n] = Row<T>(rows, first + n);
            weight[n] = hn::Set(d, weights[n]);
        }
        for (int64_t c = 0; c < whole; c += lanes) {
            auto sum = hn::LoadU(d, sums + c);
            for (int n = 0; n < N; ++n) sum = hn::MulAdd(weight[n], LoadFloats(d, row[n] + c), sum);
            hn::StoreU(sum, d, sums + c);
        }
        if (const int64_t rest = rows.columns - whole; rest > 0) {
            auto sum = LoadSome(d, sums + whole, rest);
            for (int n = 0; n < N; ++n) sum = hn::MulAdd(weight[n], LoadSome(d, row[n] + whole, rest), sum);
            HWY_ALIGN float all[hn::MaxLanes(D())];
            hn::Store(sum, d, all);
            std::copy_n(all, rest, sums + whole);
        }
    }
}

template <typename T>
static void AddWeightedOfType(const Rows& rows, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                              int64_t tokens) {
    // Long rows one after the other, which is sequential in memory. Only a column range of each is read, so
    // the hardware prefetcher does not foresee the next row.
    constexpr int64_t kShort = 64, kAhead = 4, kLine = 64 / sizeof(T);
    int64_t i = 0;
    for (; rows.columns <= kShort && i + 4 <= rows.count; i += 4)
        AddWeighted<4, T>(rows, i, x, x_stride, y, y_stride, tokens);
    for (; i < rows.count; ++i) {
        const T* ahead = Row<T>(rows, std::min(i + kAhead, rows.count - 1));
        for (int64_t c = 0; c < rows.columns; c += kLine) __builtin_prefetch(ahead + c);
        AddWeighted<1, T>(rows, i, x, x_stride, y, y_stride, tokens);
    }
}

static void AddProducts(const Rows& rows, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                        int64_t tokens) {
    switch (rows.element) {
        case kernels::Element::f32: return AddProductsOfType<float>(rows, x, x_stride, y, y_stride, tokens);
        case kernels::Element::f16:
            return AddProductsOfType<hwy::float16_t>(rows, x, x_stride, y, y_stride, tokens);
        case kernels::Element::q8_0: return AddBlockProducts(rows, x, x_stride, y, y_stride, tokens);
        default: return AddProductsOfType<hwy::bfloat16_t>(rows, x, x_stride, y, y_stride, tokens);
    }
}

static void AddWeightedRows(const Rows& rows, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                            int64_t tokens) {
    switch (rows.element) {
        case kernels::Element::f32: return AddWeightedOfType<float>(rows, x, x_stride, y, y_stride, tokens);
        case kernels::Element::f16:
            return AddWeightedOfType<hwy::float16_t>(rows, x, x_stride, y, y_stride, tokens);
        case kernels::Element::q8_0: return AddWeightedBlocks(rows, x, x_stride, y, y_stride, tokens);
        default: return AddWeightedOfType<hwy::bfloat16_t>(rows, x, x_stride, y, y_stride, tokens);
    }
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(AddProducts);
HWY_EXPORT(AddWeightedRows);

namespace kernels {

void add_products(const Rows& rows, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                  int64_t tokens) {
    HWY_DYNAMIC_DISPATCH(AddProducts)(rows, x, x_stride, y, y_stride, tokens);
}

void add_weighted_rows(const Rows& rows, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                       int64_t tokens) {
    HWY_DYNAMIC_DISPATCH(AddWeightedRows)(rows, x, x_stride, y, y_stride, tokens);
}

}  // namespace kernels
}  // namespace refold
#endif
