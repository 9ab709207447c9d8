// Attention kernels for many query rows (prefill): two GEMMs per tile with online softmax between them.
//
// In: queries F32 [block][head_dim][kTileRows], keys F32 [panel][head_dim][kPanel], values F32
// [kTileKeys][width], all packed. Out: maximum [row], sum [row] and weighted values [row][width] of a chunk,
// updated. One thread, which owns the query rows.
//
// A tile of 128 keys and values stays in the L2 cache while all blocks of six query rows pass over it; each
// block takes scores, softmax and weighted values in turn, so its scores (3 KiB) stay in the L1 cache.
// Both micro-kernels keep 6 rows x kVectors vectors of accumulators in registers: scores loop over head_dim,
// a vector of keys meets six broadcast queries; weighted values loop over the keys, a vector of values meets
// six broadcast weights, and `out` is read and written once per tile. Keys that no row of a block sees are
// skipped (Block::lo, hi).
#include "engine/ggml/attention_kernels_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ggml/attention_kernels_tiles.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include "engine/ggml/attention_kernels-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

using attention::kPanel;
using attention::kTileKeys;
using attention::kTileRows;
using attention::QueryRows;
using attention::Tile;

// Vectors of accumulators per row: kTileRows x kVectors of them fit into 16 or 32 registers.
#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2
constexpr int64_t kVectors = 2;
#else
constexpr int64_t kVectors = 4;
#endif
static_assert(kPanel % (kVectors * kLanes) == 0 && kTileKeys % kPanel == 0);

// A block of kTileRows query rows against one tile.
struct Block {
    int64_t first_row;  // in QueryRows
    int64_t lo, hi;     // keys [lo, hi) of the tile: those that some row sees

    Block(const QueryRows& rows, const Tile& tile, int64_t first) : first_row(first), lo(tile.count), hi(0) {
        for (int64_t row = first; row < first + kTileRows; ++row) {
            const RowRange seen = of_row(rows, tile, row);
            if (seen.begin >= seen.end) continue;
            lo = std::min(lo, seen.begin);
            hi = std::max(hi, seen.end);
        }
    }
    bool empty() const { return lo >= hi; }

    // The keys of the tile that a row sees; begin >= end: none.
    static RowRange of_row(const QueryRows& rows, const Tile& tile, int64_t row) {
        return {std::max<int64_t>(rows.visible[row].begin - tile.first, 0),
                std::min(rows.visible[row].end - tile.first, tile.count)};
    }
};

// Micro-kernel: scores[row][key] for kTileRows rows and kVectors vectors of keys of a panel.
static HWY_INLINE void ScoresOfColumns(const float* panel, const float* queries, int64_t head_dim,
                                       float* scores) {
    const D d;
    hn::Vec<D> sums[kTileRows][kVectors];
    for (auto& row : sums) {
        for (auto& sum : row) sum = hn::Zero(d);
    }
    for (int64_t c = 0; c < head_dim; ++c, panel += kPanel, queries += kTileRows) {
        hn::Vec<D> k[kVectors];
        for (int64_t v = 0; v < kVectors; ++v) k[v] = hn::LoadU(d, panel + v * kLanes);
        for (int64_t row = 0; row < kTileRows; ++row) {
            const auto q = hn::Set(d, queries[row]);
            for (int64_t v = 0; v < kVectors; ++v) sums[row][v] = hn::MulAdd(q, k[v], sums[row][v]);
        }
    }
    for (int64_t row = 0; row < kTileRows; ++row) {
        for (int64_t v = 0; v < kVectors; ++v)
            hn::StoreU(sums[row][v], d, scores + row * kTileKeys + v * kLanes);
    }
}

static void ScoreBlock(const QueryRows& rows, const Tile& tile, const Block& block, float* scores) {
    const float* queries = rows.queries + block.first_row * rows.head_dim;
    for (int64_t key = block.lo / kPanel * kPanel; key < block.hi; key += kPanel) {
        for (int64_t i = 0; i < kPanel; i += kVectors * kLanes)
            ScoresOfColumns(tile.keys + key * rows.head_dim + i, queries, rows.head_dim, scores + key + i);
    }
}

// Scores to weights, in place; 0 where the row does not see the key. factors[row] rescales what earlier tiles
// gave from the old maximum to the new one.
static HWY_INLINE void SoftmaxBlock(const QueryRows& rows, const Tile& tile, const Block& block,
                                    float* scores, float* factors) {
    const int64_t lo = block.lo / kLanes * kLanes, hi = (block.hi + kLanes - 1) / kLanes * kLanes;
    for (int64_t i = 0; i < kTileRows; ++i) {
        const int64_t row = block.first_row + i;
        float* s = scores + i * kTileKeys;
        const RowRange seen = Block::of_row(rows, tile, row);
        factors[i] = 1;
        if (seen.begin >= seen.end) {
            std::fill(s + lo, s + hi, 0.0F);
            continue;
        }
        factors[i] = SoftmaxOfTile(
            s, {lo, hi}, seen, rows.cap, rows.slopes == nullptr ? nullptr : rows.slopes + row,
            rows.visible[row].end - 1 - tile.first, rows.chunk.maximum[row], rows.chunk.sum[row]);
    }
}

// Micro-kernel: out[row] = factors[row] * out[row] + sum over keys of weights[row][key] * value, for V
// vectors of columns.
template <int64_t V>
static HWY_INLINE void WeightedColumns(const float* values, int64_t width, const float* weights, int64_t lo,
                                       int64_t hi, const float* factors, float* out) {
    const D d;
    hn::Vec<D> sums[kTileRows][V];
    for (int64_t row = 0; row < kTileRows; ++row) {
        const auto factor = hn::Set(d, factors[row]);
        for (int64_t v = 0; v < V; ++v)
            sums[row][v] = hn::Mul(factor, hn::LoadU(d, out + row * width + v * kLanes));
    }
    values += lo * width;
    for (int64_t key = lo; key < hi; ++key, values += width) {
        hn::Vec<D> x[V];
        for (int64_t v = 0; v < V; ++v) x[v] = hn::LoadU(d, values + v * kLanes);
        for (int64_t row = 0; row < kTileRows; ++row) {
            const auto weight = hn::Set(d, weights[row * kTileKeys + key]);
            for (int64_t v = 0; v < V; ++v) sums[row][v] = hn::MulAdd(weight, x[v], sums[row][v]);
        }
    }
    for (int64_t row = 0; row < kTileRows; ++row) {
        for (int64_t v = 0; v < V; ++v) hn::StoreU(sums[row][v], d, out + row * width + v * kLanes);
    }
}

static void WeightBlock(const QueryRows& rows, const Tile& tile, const Block& block, const float* weights,
                        const float* factors) {
    float* out = rows.chunk.out + block.first_row * rows.width;
    int64_t c = 0;
    for (; c + kVectors * kLanes <= rows.width; c += kVectors * kLanes)
        WeightedColumns<kVectors>(tile.values + c, rows.width, weights, block.lo, block.hi, factors, out + c);
    for (; c < rows.width; c += kLanes)
        WeightedColumns<1>(tile.values + c, rows.width, weights, block.lo, block.hi, factors, out + c);
}

static void AttendTile(const QueryRows& rows, const Tile& tile) {
    HWY_ALIGN float weights[kTileRows * kTileKeys];
    float factors[kTileRows];
    for (int64_t first = 0; first < rows.count; first += kTileRows) {
        const Block block(rows, tile, first);
        if (block.empty()) continue;
        ScoreBlock(rows, tile, block, weights);
        SoftmaxBlock(rows, tile, block, weights, factors);
        WeightBlock(rows, tile, block, weights, factors);
    }
}

// Prefetches the probabilities of a tile for a block of rows: they are too far apart for the hardware
// prefetcher.
template <bool write, typename T>
static HWY_INLINE void FetchProbabilities(const QueryRows& rows, const Tile& tile, int64_t first_row,
                                          T* const* probabilities) {
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t row = first_row; row < std::min(first_row + kTileRows, rows.count); ++row) {
        if (probabilities[row] == nullptr) continue;
        for (int64_t i = 0; i < tile.count; i += kLine)
            __builtin_prefetch(probabilities[row] + tile.first + i, write ? 1 : 0);
    }
}

template <typename T>
static void ScoreTileOfType(const QueryRows& rows, const Tile& tile, T* const* probabilities,
                            float* tile_maximum) {
    HWY_ALIGN float weights[kTileRows * kTileKeys];
    float factors[kTileRows];
    for (int64_t first = 0; first < rows.count; first += kTileRows) {
        const Block block(rows, tile, first);
        if (block.empty()) continue;
        FetchProbabilities<true>(rows, tile, first, probabilities);
        ScoreBlock(rows, tile, block, weights);
        SoftmaxBlock(rows, tile, block, weights, factors);
        for (int64_t i = 0; i < kTileRows; ++i) {
            const int64_t row = first + i;
            tile_maximum[row] = rows.chunk.maximum[row];
            const RowRange seen = Block::of_row(rows, tile, row);
            if (seen.begin >= seen.end) continue;
            Scale(weights + i * kTileKeys + seen.begin, seen.end - seen.begin, 1.0F,
                  probabilities[row] + tile.first + seen.begin);
        }
    }
}

template <typename T>
static void ApplyTileOfType(const QueryRows& rows, const Tile& tile, const T* const* probabilities) {
    constexpr float kKeep[kTileRows] = {1, 1, 1, 1, 1, 1};
    HWY_ALIGN float weights[kTileRows * kTileKeys];
    for (int64_t first = 0; first < rows.count; first += kTileRows) {
        const Block block(rows, tile, first);
        FetchProbabilities<false>(rows, tile, first + kTileRows, probabilities);
        if (block.empty()) continue;
        for (int64_t i = 0; i < kTileRows; ++i) {
            const int64_t row = first + i;
            float* w = weights + i * kTileKeys;
            const RowRange seen = Block::of_row(rows, tile, row);
            const bool sees = seen.begin < seen.end;
            std::fill(w + block.lo, w + (sees ? seen.begin : block.hi), 0.0F);
            if (!sees) continue;
            Scale(probabilities[row] + tile.first + seen.begin, seen.end - seen.begin, 1.0F, w + seen.begin);
            std::fill(w + seen.end, w + block.hi, 0.0F);
        }
        WeightBlock(rows, tile, block, weights, kKeep);
    }
}

static void ScoreTileF16(const QueryRows& rows, const Tile& tile, void* const* probabilities,
                         float* tile_maximum) {
    ScoreTileOfType(rows, tile, reinterpret_cast<hwy::float16_t* const*>(probabilities), tile_maximum);
}
static void ScoreTileF32(const QueryRows& rows, const Tile& tile, void* const* probabilities,
                         float* tile_maximum) {
    ScoreTileOfType(rows, tile, reinterpret_cast<float* const*>(probabilities), tile_maximum);
}

static void ApplyTileF16(const QueryRows& rows, const Tile& tile, void* const* probabilities) {
    ApplyTileOfType(rows, tile, reinterpret_cast<const hwy::float16_t* const*>(probabilities));
}
static void ApplyTileF32(const QueryRows& rows, const Tile& tile, void* const* probabilities) {
    ApplyTileOfType(rows, tile, reinterpret_cast<const float* const*>(probabilities));
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(AttendTile);
HWY_EXPORT(ScoreTileF16);
HWY_EXPORT(ScoreTileF32);
HWY_EXPORT(ApplyTileF16);
HWY_EXPORT(ApplyTileF32);

namespace attention {

void attend_tile(const QueryRows& rows, const Tile& tile) { HWY_DYNAMIC_DISPATCH(AttendTile)(rows, tile); }

void score_tile(const QueryRows& rows, const Tile& tile, void* const* probabilities, bool half,
                float* tile_maximum) {
    if (half) return HWY_DYNAMIC_DISPATCH(ScoreTileF16)(rows, tile, probabilities, tile_maximum);
    HWY_DYNAMIC_DISPATCH(ScoreTileF32)(rows, tile, probabilities, tile_maximum);
}

void apply_tile(const QueryRows& rows, const Tile& tile, void* const* probabilities, bool half) {
    if (half) return HWY_DYNAMIC_DISPATCH(ApplyTileF16)(rows, tile, probabilities);
    HWY_DYNAMIC_DISPATCH(ApplyTileF32)(rows, tile, probabilities);
}

}  // namespace attention
}  // namespace refold
#endif
