// Attention kernels for few query rows (decode).
//
// In: up to four query heads F32 [heads][head_dim]; keys or values of their KV head in one chunk, of any
// RowType [row][head_dim]. Out: weights F32 [heads][row]; weighted values F32 [heads][head_dim].
// One thread; the caller splits tokens, KV heads and chunks of rows.
//
// Sums have the order of the kernels for many queries (attention_kernels_tiles.cpp): a score adds up column
// by column, a weighted value row by row. So keys are transposed within registers, as many as a vector has
// lanes: each is loaded (and widened) once for all heads, and keys stream from memory once, row after row.
// This takes about as long as sums over the lanes of a vector for each key. For weighted values blocks of
// columns are the outer loop, up to four vectors wide: heads x 4 accumulators stay in registers over all rows
// of the chunk, so the output is written once. Every value is loaded once; the weights are read again for
// each block of columns, from cache.
#include "engine/ggml/attention_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ggml/attention_kernels.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include "engine/ggml/attention_blocks-inl.h"
#include "engine/ggml/attention_kernels-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

using attention::ChunkWeights;
using attention::FewQueries;
using attention::FloatArray;
using attention::kTileKeys;
using attention::Softmax;

// scores[h][i] = <query h, key i> for N query heads; also for keys after the last one, up to a whole vector.
template <int N, typename T>
static void Products(const CachedRows& keys, const float* queries, float* scores) {
    const D d;
    const int64_t head_dim = keys.head_dim;
    for (int64_t first = 0; first < keys.count; first += kLanes) {
        hn::Vec<D> sums[N];
        for (auto& sum : sums) sum = hn::Zero(d);
        const auto add_columns = [&]<bool kWhole>(int64_t c) HWY_ATTR {
            const int64_t columns = kWhole ? kLanes : head_dim - c;
            hn::Vec<D> square[kLanes];
            for (int64_t i = 0; i < kLanes; ++i) {  // the last key in place of those after it
                const auto key = Row<T>(keys, std::min(first + i, keys.count - 1)) + c;
                square[i] = kWhole ? LoadFloats(d, key) : LoadSome(d, key, columns);
            }
            Transpose(square);
// Otherwise the square is in memory.
#pragma GCC unroll 16
            for (int64_t i = 0; i < kLanes; ++i) {
                if (!kWhole && i == columns) break;
                for (int h = 0; h < N; ++h)
                    sums[h] = hn::MulAdd(hn::Set(d, queries[h * head_dim + c + i]), square[i], sums[h]);
            }
        };
        int64_t c = 0;
        for (; c + kLanes <= head_dim; c += kLanes) add_columns.template operator()<true>(c);
        if (c < head_dim) add_columns.template operator()<false>(c);
        for (int h = 0; h < N; ++h) hn::StoreU(sums[h], d, scores + h * ChunkWeights::kStride + first);
    }
}

template <int N, typename T>
static void ScoreHeads(const CachedRows& keys, int64_t first, const FewQueries& queries, float cap,
                       ChunkWeights& out) {
    float* scores = out.weights[0] + first;
#if REFOLD_HAS_VNNI
    if (std::is_same_v<T, Q8Blocks> && keys.head_dim <= kMostBlocks * attention::kRowBlock)
        ProductsOfBlocks<N>(keys, queries.queries, scores);
    else
#endif
        Products<N, T>(keys, queries.queries, scores);
    const int64_t end = first + keys.count;
    for (int h = 0; h < N; ++h) {
        out.maximum[h] = -std::numeric_limits<float>::infinity();
        out.sum[h] = 0;
        for (int64_t t = first / kTileKeys; t * kTileKeys < end; ++t) {
            const int64_t tile = t * kTileKeys;
            const RowRange seen{std::max<int64_t>(first - tile, 0), std::min(end - tile, kTileKeys)},
                vectors{seen.begin / kLanes * kLanes, (seen.end + kLanes - 1) / kLanes * kLanes};
            out.factor[h][t] = SoftmaxOfTile(out.weights[h] + tile, vectors, seen, cap,
                                             queries.slopes == nullptr ? nullptr : queries.slopes + h,
                                             queries.distance - tile, out.maximum[h], out.sum[h]);
            out.tile_maximum[h][t] = out.maximum[h];
        }
    }
}

// Calls function.template operator()<N>() with the number of heads.
template <class Function>
static HWY_INLINE void OfHeads(int64_t heads, const Function& function) {
    switch (heads) {
        case 1: return function.template operator()<1>();
        case 2: return function.template operator()<2>();
        case 3: return function.template operator()<3>();
        default: return function.template operator()<4>();
    }
}

// out[h] = sum over i of weights[h][first + i] * value i, for the V vectors of columns from `column` on, or
// with V = 0 the last columns, which fill no vector.
template <int N, int V, typename T>
static void WeightedColumns(const CachedRows& values, int64_t first, int64_t column, const ChunkWeights& w,
                            float* out, int64_t out_stride) {
    const D d;
    constexpr int kVectors = std::max(V, 1);
    const int64_t rest = values.head_dim - column;
    hn::Vec<D> sums[N][kVectors];
    for (auto& row : sums) {
        for (auto& sum : row) sum = hn::Zero(d);
    }
    for (int64_t i = 0; i < values.count;) {
        const int64_t tile = (first + i) / kTileKeys,
                      end = std::min(values.count, (tile + 1) * kTileKeys - first);
        for (int h = 0; h < N; ++h) {
            const auto factor = hn::Set(d, w.factor[h][tile]);
            for (auto& sum : sums[h]) sum = hn::Mul(factor, sum);
        }
        for (; i < end; ++i) {
            const auto value = Row<T>(values, i) + column;
            hn::Vec<D> v[kVectors];
            if constexpr (V == 0) {
                v[0] = LoadSome(d, value, rest);
            } else {
                for (int64_t k = 0; k < V; ++k) v[k] = LoadFloats(d, value + k * kLanes);
            }
            for (int h = 0; h < N; ++h) {
                const auto weight = hn::Set(d, w.weights[h][first + i]);
                for (int k = 0; k < kVectors; ++k) sums[h][k] = hn::MulAdd(weight, v[k], sums[h][k]);
            }
        }
    }
    for (int h = 0; h < N; ++h) {
        float* to = out + h * out_stride + column;
        if constexpr (V == 0) {
            HWY_ALIGN float all[kLanes];
            hn::Store(sums[h][0], d, all);
            std::copy_n(all, rest, to);
        } else {
            for (int64_t k = 0; k < V; ++k) hn::StoreU(sums[h][k], d, to + k * kLanes);
        }
    }
}

template <int N, typename T>
static void WeightHeads(const CachedRows& values, int64_t first, const ChunkWeights& weights, float* out,
                        int64_t out_stride) {
#if REFOLD_WEIGHS_BLOCKS
    if constexpr (std::is_same_v<T, Q8Blocks>)
        return WeightAllBlocks<N>(values, first, weights, out, out_stride);
#endif
        // Their sums for N heads fit into the registers.
#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2
    constexpr int kTogether = N == 4 ? 2 : 4;
#else
    constexpr int kTogether = 4;
#endif
    int64_t c = 0;
    for (; c + kTogether * kLanes <= values.head_dim; c += kTogether * kLanes)
        WeightedColumns<N, kTogether, T>(values, first, c, weights, out, out_stride);
    for (; c + kLanes <= values.head_dim; c += kLanes)
        WeightedColumns<N, 1, T>(values, first, c, weights, out, out_stride);
    if (c < values.head_dim) WeightedColumns<N, 0, T>(values, first, c, weights, out, out_stride);
}

static void ScoreFew(const CachedRows& keys, int64_t first, const FewQueries& queries, float cap,
                     ChunkWeights& weights) {
    OfType(keys.type, [&]<typename T>() HWY_ATTR {
        OfHeads(queries.heads,
                [&]<int N>() HWY_ATTR { ScoreHeads<N, T>(keys, first, queries, cap, weights); });
    });
}

static void WeightFew(const CachedRows& values, int64_t first, int64_t heads, const ChunkWeights& weights,
                      float* out, int64_t out_stride) {
    OfType(values.type, [&]<typename T>() HWY_ATTR {
        OfHeads(heads, [&]<int N>() HWY_ATTR { WeightHeads<N, T>(values, first, weights, out, out_stride); });
    });
}

static void Merge(int64_t rows, int64_t width, const Softmax& chunk, const Softmax& total) {
    const D d;
    for (int64_t first = 0; first < rows; first += kLanes) {
        const int64_t count = std::min(kLanes, rows - first);
        const auto load = [&](const float* from) HWY_ATTR {
            return count == kLanes ? hn::LoadU(d, from + first) : LoadSome(d, from + first, count);
        };
        const auto of_chunk = load(chunk.maximum), of_total = load(total.maximum),
                   maximum = hn::Max(of_chunk, of_total),
                   // A row that has met no key has weights 0, not NaN.
            shift = hn::Max(maximum, hn::Set(d, std::numeric_limits<float>::lowest()));
        const auto new_factors = Exp2(d, hn::Sub(of_chunk, shift)),
                   old_factors = Exp2(d, hn::Sub(of_total, shift));
        const auto sum = hn::MulAdd(new_factors, load(chunk.sum), hn::Mul(old_factors, load(total.sum)));
        HWY_ALIGN float all[4][kLanes];
        hn::Store(maximum, d, all[0]);
        hn::Store(sum, d, all[1]);
        hn::Store(new_factors, d, all[2]);
        hn::Store(old_factors, d, all[3]);
        std::copy_n(all[0], count, total.maximum + first);
        std::copy_n(all[1], count, total.sum + first);
        for (int64_t i = 0; i < count; ++i) {
            const auto added = hn::Set(d, all[2][i]), kept = hn::Set(d, all[3][i]);
            const float* from = chunk.out + (first + i) * chunk.stride;
            float* to = total.out + (first + i) * total.stride;
            for (int64_t c = 0; c < width; c += kLanes)
                hn::StoreU(hn::MulAdd(added, hn::LoadU(d, from + c), hn::Mul(kept, hn::LoadU(d, to + c))), d,
                           to + c);
        }
    }
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
HWY_EXPORT(Merge);
HWY_EXPORT(ScaleNumbers);
HWY_EXPORT(AddNumbers);

namespace attention {

void score_few(const CachedRows& keys, int64_t first, const FewQueries& queries, float cap,
               ChunkWeights& weights) {
    HWY_DYNAMIC_DISPATCH(ScoreFew)(keys, first, queries, cap, weights);
}

void weight_few(const CachedRows& values, int64_t first, int64_t heads, const ChunkWeights& weights,
                float* out, int64_t out_stride) {
    HWY_DYNAMIC_DISPATCH(WeightFew)(values, first, heads, weights, out, out_stride);
}

void merge(int64_t rows, int64_t width, const Softmax& chunk, const Softmax& total) {
    HWY_DYNAMIC_DISPATCH(Merge)(rows, width, chunk, total);
}

void scale(FloatArray from, int64_t count, float factor, FloatArray to) {
    HWY_DYNAMIC_DISPATCH(ScaleNumbers)(from, count, factor, to);
}

void add(FloatArray x, int64_t count, float* sums) { HWY_DYNAMIC_DISPATCH(AddNumbers)(x, count, sums); }

}  // namespace attention
}  // namespace refold
#endif
