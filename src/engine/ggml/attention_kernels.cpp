// Attention kernels for few query rows (decode).
//
// In: up to three query heads F32 [heads][head_dim]; keys or values of their KV head, of any
// RowType [row][head_dim]. Out: weights F32 [heads][row]; weighted values F32 [heads][head_dim].
// One thread; the caller splits tokens, KV heads and chunks of rows.
//
// Scores are a GEMV per head. Rows are the outer loop, four at a time: a vector of a key is loaded (and
// widened) once for all heads, a vector of a query once for four keys, whose accumulators stay in registers,
// and keys stream from memory once, row after row. For weighted values blocks of columns are the outer loop,
// four vectors wide: heads x 4 accumulators stay in registers over all rows, so the output is written once.
// Every value is loaded once; the weights are read again for each block of columns, from cache.
#include "engine/ggml/attention_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ggml/attention_kernels.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include "engine/ggml/attention_blocks-inl.h"
#include "engine/ggml/attention_kernels-inl.h"
// clang-format on

#include <limits>

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

using attention::FewQueries;
using attention::FloatArray;

// The sums of all lanes of four vectors.
static HWY_INLINE void SumLanes(const hn::Vec<D> (&x)[4], float* sums) {
    const D d;
#if HWY_TARGET != HWY_SCALAR
    if constexpr (kLanes >= 4) {
        // Each step adds halves of the lanes within 128 bits, and keeps the vectors apart.
        const hn::RepartitionToWide<D> wide;
        const auto pairs = [&](hn::Vec<D> a, hn::Vec<D> b) {
            return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
        };
        const auto ab = hn::BitCast(wide, pairs(x[0], x[1])), cd = hn::BitCast(wide, pairs(x[2], x[3]));
        const auto all = hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab, cd)),
                                 hn::BitCast(d, hn::InterleaveUpper(wide, ab, cd)));
        HWY_ALIGN float parts[kLanes];
        hn::Store(all, d, parts);
        const hn::CappedTag<float, 4> four;
        auto sum = hn::Load(four, parts);
        for (int64_t i = 4; i < kLanes; i += 4) sum = hn::Add(sum, hn::Load(four, parts + i));
        hn::StoreU(sum, four, sums);
        return;
    }
#endif
    for (int i = 0; i < 4; ++i) sums[i] = hn::GetLane(hn::SumOfLanes(d, x[i]));
}

// scores[h][i] = factor * <query h, key i> for N query heads; four keys at a time, so that queries are loaded
// once for all of them.
template <int N, typename T>
static void Products(const CachedRows& keys, const float* queries, float factor, float* scores,
                     int64_t stride) {
    const D d;
    constexpr int kKeys = 4;
    const int64_t whole = keys.head_dim / kLanes * kLanes;
    for (int64_t first = 0; first < keys.count; first += kKeys) {
        // The last key in place of those after it.
        const auto key = [&](int64_t k) { return Row<T>(keys, std::min(first + k, keys.count - 1)); };
        hn::Vec<D> sums[N][kKeys];
        for (auto& row : sums) {
            for (auto& sum : row) sum = hn::Zero(d);
        }
        for (int64_t c = 0; c < whole; c += kLanes) {
            hn::Vec<D> q[N];
            for (int h = 0; h < N; ++h) q[h] = hn::LoadU(d, queries + h * keys.head_dim + c);
            for (int k = 0; k < kKeys; ++k) {
                const auto x = LoadFloats(d, key(k) + c);
                for (int h = 0; h < N; ++h) sums[h][k] = hn::MulAdd(x, q[h], sums[h][k]);
            }
        }
        const int64_t count = std::min<int64_t>(kKeys, keys.count - first);
        for (int h = 0; h < N; ++h) {
            float all[kKeys];
            SumLanes(sums[h], all);
            for (int64_t k = 0; k < count; ++k) {
                for (int64_t c = whole; c < keys.head_dim; ++c)
                    all[k] += Scalar(key(k) + c) * queries[h * keys.head_dim + c];
                scores[h * stride + first + k] = all[k] * factor;
            }
        }
    }
}

template <int N, typename T>
static void ScoreHeads(const CachedRows& keys, const FewQueries& queries, const ScoreRules& rules,
                       float* weights, int64_t stride, float* maxima, float* sums) {
#if REFOLD_HAS_VNNI
    if (std::is_same_v<T, Q8Blocks> && keys.head_dim <= kMostBlocks * attention::kRowBlock)
        ProductsOfBlocks<N>(keys, queries.queries, rules.factor, weights, stride);
    else
#endif
        Products<N, T>(keys, queries.queries, rules.factor, weights, stride);
    for (int h = 0; h < N; ++h) {
        float* row = weights + h * stride;
        if (rules.cap > 0) CapScores(row, stride, rules.cap);
        if (queries.slopes != nullptr)
            SubtractDistances(row, stride, queries.slopes[h], static_cast<float>(queries.distance));
        std::fill(row + keys.count, row + stride, -std::numeric_limits<float>::infinity());
        maxima[h] = Largest(row, stride);
        sums[h] = Exponentials(row, stride, maxima[h]);
    }
}

template <typename T>
static void ScoreOfType(const CachedRows& keys, const FewQueries& queries, const ScoreRules& rules,
                        float* weights, int64_t stride, float* maxima, float* sums) {
    switch (queries.heads) {
        case 1: return ScoreHeads<1, T>(keys, queries, rules, weights, stride, maxima, sums);
        case 2: return ScoreHeads<2, T>(keys, queries, rules, weights, stride, maxima, sums);
        default: return ScoreHeads<3, T>(keys, queries, rules, weights, stride, maxima, sums);
    }
}

// out[h] = sum over i of weights[h][i] * value i, for the V vectors of columns from column `first` on.
template <int N, int V, typename T>
static void WeightedColumns(const CachedRows& values, int64_t first, const float* weights, int64_t stride,
                            float* out, int64_t out_stride) {
    const D d;
    hn::Vec<D> sums[N][V];
    for (auto& row : sums) {
        for (auto& sum : row) sum = hn::Zero(d);
    }
    for (int64_t i = 0; i < values.count; ++i) {
        const auto value = Row<T>(values, i) + first;
        hn::Vec<D> v[V];
        for (int64_t k = 0; k < V; ++k) v[k] = LoadFloats(d, value + k * kLanes);
        for (int h = 0; h < N; ++h) {
            const auto weight = hn::Set(d, weights[h * stride + i]);
            for (int k = 0; k < V; ++k) sums[h][k] = hn::MulAdd(weight, v[k], sums[h][k]);
        }
    }
    for (int h = 0; h < N; ++h) {
        for (int64_t k = 0; k < V; ++k) hn::StoreU(sums[h][k], d, out + h * out_stride + first + k * kLanes);
    }
}

template <int N, typename T>
static void WeightHeads(const CachedRows& values, const float* weights, int64_t stride, float* out,
                        int64_t out_stride) {
#if REFOLD_WEIGHS_BLOCKS
    if constexpr (std::is_same_v<T, Q8Blocks>)
        return WeightAllBlocks<N>(values, weights, stride, out, out_stride);
#endif
    int64_t c = 0;
    for (; c + 4 * kLanes <= values.head_dim; c += 4 * kLanes)
        WeightedColumns<N, 4, T>(values, c, weights, stride, out, out_stride);
    for (; c + kLanes <= values.head_dim; c += kLanes)
        WeightedColumns<N, 1, T>(values, c, weights, stride, out, out_stride);
    for (; c < values.head_dim; ++c) {
        for (int h = 0; h < N; ++h) {
            float sum = 0;
            for (int64_t i = 0; i < values.count; ++i)
                sum += weights[h * stride + i] * Scalar(Row<T>(values, i) + c);
            out[h * out_stride + c] = sum;
        }
    }
}

template <typename T>
static void WeightOfType(const CachedRows& values, int64_t heads, const float* weights, int64_t stride,
                         float* out, int64_t out_stride) {
    switch (heads) {
        case 1: return WeightHeads<1, T>(values, weights, stride, out, out_stride);
        case 2: return WeightHeads<2, T>(values, weights, stride, out, out_stride);
        default: return WeightHeads<3, T>(values, weights, stride, out, out_stride);
    }
}

static void ScoreFew(const CachedRows& keys, const FewQueries& queries, const ScoreRules& rules,
                     float* weights, int64_t stride, float* maxima, float* sums) {
    OfType(keys.type,
           [&]<typename T>() { ScoreOfType<T>(keys, queries, rules, weights, stride, maxima, sums); });
}

static void WeightFew(const CachedRows& values, int64_t heads, const float* weights, int64_t stride,
                      float* out, int64_t out_stride) {
    OfType(values.type,
           [&]<typename T>() { WeightOfType<T>(values, heads, weights, stride, out, out_stride); });
}

template <typename From>
static void ScaleFrom(const From* from, int64_t count, float factor, FloatArray to) {
    if (to.half) return Scale(from, count, factor, static_cast<hwy::float16_t*>(to.data));
    Scale(from, count, factor, static_cast<float*>(to.data));
}

static void ScaleNumbers(FloatArray from, int64_t count, float factor, FloatArray to) {
    if (from.half) return ScaleFrom(static_cast<const hwy::float16_t*>(from.data), count, factor, to);
    ScaleFrom(static_cast<const float*>(from.data), count, factor, to);
}

template <typename T>
static void AddOfType(const T* x, int64_t count, float* sums) {
    const D d;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        hn::StoreU(hn::Add(hn::LoadU(d, sums + i), LoadFloats(d, x + i)), d, sums + i);
    for (; i < count; ++i) sums[i] += Scalar(x + i);
}

static void AddNumbers(FloatArray x, int64_t count, float* sums) {
    if (x.half) return AddOfType(static_cast<const hwy::float16_t*>(x.data), count, sums);
    AddOfType(static_cast<const float*>(x.data), count, sums);
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(ScoreFew);
HWY_EXPORT(WeightFew);
HWY_EXPORT(ScaleNumbers);
HWY_EXPORT(AddNumbers);

namespace attention {

void score_few(const CachedRows& keys, const FewQueries& queries, const ScoreRules& rules, float* weights,
               int64_t stride, float* maxima, float* sums) {
    HWY_DYNAMIC_DISPATCH(ScoreFew)(keys, queries, rules, weights, stride, maxima, sums);
}

void weight_few(const CachedRows& values, int64_t heads, const float* weights, int64_t stride, float* out,
                int64_t out_stride) {
    HWY_DYNAMIC_DISPATCH(WeightFew)(values, heads, weights, stride, out, out_stride);
}

void scale(FloatArray from, int64_t count, float factor, FloatArray to) {
    HWY_DYNAMIC_DISPATCH(ScaleNumbers)(from, count, factor, to);
}

void add(FloatArray x, int64_t count, float* sums) { HWY_DYNAMIC_DISPATCH(AddNumbers)(x, count, sums); }

}  // namespace attention
}  // namespace refold
#endif
