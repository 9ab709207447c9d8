// Products of integers with cached rows of Q8_0, for few query rows; included once per Highway target.
//
// Reading blocks as floats takes longer than memory does. Queries and weights become integers of 16 bits
// instead, whose rounding errors are small beside those of the rows.
#if defined(REFOLD_ATTENTION_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFOLD_ATTENTION_BLOCKS_INL_H_
#undef REFOLD_ATTENTION_BLOCKS_INL_H_
#else
#define REFOLD_ATTENTION_BLOCKS_INL_H_
#endif

#include "engine/ggml/attention_kernels-inl.h"
#include "engine/ggml/vnni-inl.h"

HWY_BEFORE_NAMESPACE();
#if REFOLD_HAS_VNNI
#pragma GCC target("avx512vnni")
#endif
namespace refold::HWY_NAMESPACE {

// On ARM reading blocks as floats has not been found slow.
#undef REFOLD_WEIGHS_BLOCKS
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#define REFOLD_WEIGHS_BLOCKS 1
#else
#define REFOLD_WEIGHS_BLOCKS 0
#endif
#if REFOLD_WEIGHS_BLOCKS

using DInts = hn::RebindToSigned<D>;
using Ints = hn::Vec<DInts>;
using DShorts = hn::Repartition<int16_t, D>;
using Shorts = hn::Vec<DShorts>;

// Rows whose weights are rounded together. Sums of so many products of 16 and 8 bits fit into 32 bits.
constexpr int64_t kStretch = attention::kTileKeys;
static_assert(kStretch * 32767 * 128 < INT32_MAX && kStretch % kLanes == 0);

// Rows from `first` on: their scales of one block, as stored. Those after the last row are the last row's.
static HWY_INLINE void CopyScales(const CachedRows& rows, int64_t first, int64_t count, int64_t block,
                                  uint16_t* scales) {
    const char* at = (Row<Q8Blocks>(rows, first) + block * attention::kRowBlock).block();
    const int64_t whole = std::min(count, rows.count - first);
#pragma GCC unroll 8
    for (int64_t i = 0; i < whole; ++i, at += rows.stride) memcpy(scales + i, at, sizeof(uint16_t));
    std::fill(scales + whole, scales + count, scales[whole - 1]);
}

static HWY_INLINE hn::Vec<D> LoadScales(const uint16_t* from) {
    return LoadFloats(D(), reinterpret_cast<const hwy::float16_t*>(from));
}

// Sums of products in the lanes of a vector.
#if REFOLD_HAS_VNNI
// With the type of its intrinsic GCC copies every sum of a loop twice.
using Sums = int32_t __attribute__((vector_size(64)));
static HWY_INLINE Ints Total(Sums sums) { return Ints{(__m512i)sums}; }
#else
using Sums = Ints;
static HWY_INLINE Ints Total(Sums sums) { return sums; }
#endif

// sums + products of two neighbors.
static HWY_INLINE Sums AddPairs(Sums sums, Shorts a, Shorts b) {
#if REFOLD_HAS_VNNI
    return __builtin_ia32_vpdpwssd_v16si(sums, (Sums)a.raw, (Sums)b.raw);
#else
    return hn::ReorderWidenMulAccumulate(DInts(), a, b, sums, sums);
#endif
}

// rounded[i] = weights[i] * scales[i] / step, of 16 bits; returns the step.
static HWY_INLINE float RoundWeights(const float* weights, const float* scales, int64_t count,
                                     int16_t* rounded) {
    const D d;
    const hn::RebindToUnsigned<D> words;
    const hn::Rebind<uint16_t, D> halves;
    constexpr float kLargest = 32767, kNothing = 1e-30F;
    alignas(64) float products[kStretch];
    auto most = hn::Zero(d);
    for (int64_t i = 0; i < count; i += kLanes) {
        const auto x = hn::Mul(hn::LoadU(d, weights + i), hn::Load(d, scales + i));
        hn::Store(x, d, products + i);
        most = hn::Max(most, hn::Abs(x));
    }
    const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
    const auto factor = hn::Set(d, largest > kNothing ? kLargest / largest : 0.0F);
    // 1.5 * 2^23: adding it leaves an integer in the lower bits.
    const auto round = hn::Set(d, 12582912.0F);
    for (int64_t i = 0; i < count; i += kLanes) {
        const auto x = hn::BitCast(words, hn::MulAdd(hn::Load(d, products + i), factor, round));
        hn::StoreU(hn::TruncateTo(halves, x), halves, reinterpret_cast<uint16_t*>(rounded + i));
    }
    return largest / kLargest;
}

// out[h] += sum over i of weights[h][i] * value i, for rows [first, first + count), count <= kStretch, and U
// times 2 * kLanes columns from `column` on. Two rows at a time: their numbers are interleaved, and a product
// of 16 bits adds those of both.
template <int N, int U>
static HWY_INLINE void AddWeightedBlocks(const CachedRows& values, int64_t first, int64_t count,
                                         int64_t column, const int16_t (*weights)[N][kStretch],
                                         const float (*steps)[N], float* out, int64_t out_stride) {
    const DInts d;
    const DShorts d16;
    const hn::Rebind<int8_t, DShorts> bytes;
    constexpr int64_t kColumns = 2 * kLanes;
    Sums sums[N][U][2];
    for (auto& head : sums) {
        for (auto& unit : head) unit[0] = unit[1] = Sums{};
    }
    const auto block = [](int u) { return u * kColumns / attention::kRowBlock; };
    const int8_t* units[U];
    for (int u = 0; u < U; ++u) units[u] = (Row<Q8Blocks>(values, first) + (column + u * kColumns)).quants();
    const auto add_rows = [&](int64_t i, size_t next) HWY_ATTR {
        for (const size_t row : {size_t{0}, next})
            __builtin_prefetch(units[0] + row + kStretch * values.stride);
        for (int u = 0; u < U; ++u) {
            const Shorts x = hn::PromoteTo(d16, hn::LoadU(bytes, units[u])),
                         y = hn::PromoteTo(d16, hn::LoadU(bytes, units[u] + next));
            units[u] += 2 * next;
            const Shorts low = hn::InterleaveLower(d16, x, y), high = hn::InterleaveUpper(d16, x, y);
            for (int h = 0; h < N; ++h) {
                int32_t pair;
                memcpy(&pair, &weights[block(u)][h][i], sizeof(pair));
                const auto w = hn::BitCast(d16, hn::Set(d, pair));
                sums[h][u][0] = AddPairs(sums[h][u][0], low, w);
                sums[h][u][1] = AddPairs(sums[h][u][1], high, w);
            }
        }
    };
    for (int64_t i = 0; i + 1 < count; i += 2) add_rows(i, values.stride);
    if (count % 2 != 0) add_rows(count - 1, 0);  // the weight after the last one is 0
    // Interleaved within 128 bits: four columns in `low`, the next four in `high`.
    const hn::CappedTag<float, 4> four;
    for (int h = 0; h < N; ++h) {
        for (int u = 0; u < U; ++u) {
            const auto step = hn::Set(D(), steps[block(u)][h]);
            HWY_ALIGN float parts[2][kLanes];
            for (int k = 0; k < 2; ++k)
                hn::Store(hn::Mul(step, hn::ConvertTo(D(), Total(sums[h][u][k]))), D(), parts[k]);
            float* to = out + h * out_stride + column + u * kColumns;
            for (int64_t c = 0; c < kLanes; c += 4) {
                for (int k = 0; k < 2; ++k, to += 4)
                    hn::StoreU(hn::Add(hn::LoadU(four, to), hn::Load(four, parts[k] + c)), four, to);
            }
        }
    }
}

// For B whole blocks from `block` on. `weights`: of rows [first, first + count), zeros after them up to a
// whole vector.
template <int N, int B>
static HWY_INLINE void WeightBlocks(const CachedRows& values, int64_t first, int64_t count, int64_t block,
                                    const float (*weights)[kStretch], float* out, int64_t out_stride) {
    alignas(64) uint16_t halves[kStretch];
    alignas(64) float scales[kStretch];
    alignas(64) int16_t rounded[B][N][kStretch];
    float steps[B][N];
    const int64_t whole = (count + kLanes - 1) / kLanes * kLanes;
    for (int b = 0; b < B; ++b) {
        CopyScales(values, first, whole, block + b, halves);
        for (int64_t i = 0; i < whole; i += kLanes) hn::Store(LoadScales(halves + i), D(), scales + i);
        for (int h = 0; h < N; ++h) steps[b][h] = RoundWeights(weights[h], scales, whole, rounded[b][h]);
    }
    constexpr int kUnits = B * attention::kRowBlock >= 4 * kLanes ? 2 : 1;
    constexpr int64_t kColumns = kUnits * 2 * kLanes;
    for (int64_t c = 0; c < B * attention::kRowBlock; c += kColumns)
        AddWeightedBlocks<N, kUnits>(values, first, count, block * attention::kRowBlock + c, rounded, steps,
                                     out, out_stride);
}

// weight_few of Q8_0.
template <int N>
static void WeightAllBlocks(const CachedRows& values, int64_t first_row, const attention::ChunkWeights& w,
                            float* out, int64_t out_stride) {
    // Together where their sums fit into the registers.
    constexpr int kTogether = 4 * kLanes > attention::kRowBlock ? 2 : 1;
    const int64_t blocks = values.head_dim / attention::kRowBlock;
    for (int h = 0; h < N; ++h) std::fill_n(out + h * out_stride, values.head_dim, 0.0F);
    for (int64_t first = 0, count = 0; first < values.count; first += count) {
        const int64_t row = first_row + first, tile = row / kStretch;
        count = std::min(values.count - first, (tile + 1) * kStretch - row);
        alignas(64) float weights[N][kStretch];
        for (int h = 0; h < N; ++h) {
            std::copy_n(w.weights[h] + row, count, weights[h]);
            std::fill(weights[h] + count, weights[h] + (count + kLanes - 1) / kLanes * kLanes, 0.0F);
            const float factor = w.factor[h][tile];
            for (int64_t c = 0; first > 0 && factor != 1 && c < values.head_dim; ++c)
                out[h * out_stride + c] *= factor;
        }
        int64_t b = 0;
        for (; b + kTogether <= blocks; b += kTogether)
            WeightBlocks<N, kTogether>(values, first, count, b, weights, out, out_stride);
        for (; b < blocks; ++b) WeightBlocks<N, 1>(values, first, count, b, weights, out, out_stride);
    }
}

#endif

#if REFOLD_HAS_VNNI

using Words = hn::Vec<hn::Repartition<uint32_t, D>>;

// Rows whose scores are the lanes of a vector.
constexpr int64_t kTile = 16;
static_assert(kTile == kLanes);
constexpr int64_t kMostBlocks = 16;
// Rows that are fetched ahead: the hardware does not foresee the order of a tile.
constexpr size_t kAhead = 128;

// 32 numbers of a query: 256 * high + low, each repeated for the rows of `Columns`, times `step`.
struct BlockQuery {
    alignas(64) int8_t high[4][64], low[4][64];
    float step;
    int32_t offset;  // 128 times the sum of the numbers: bytes of rows are 128 above theirs
};

static HWY_INLINE void RoundQuery(const float* query, BlockQuery& out) {
    const D d;
    const DInts di;
    const hn::Rebind<int8_t, D> bytes;
    constexpr float kLargest = 127 * 256 + 127;
    const hn::Vec<D> x[2] = {hn::LoadU(d, query), hn::LoadU(d, query + kLanes)};
    const float largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Abs(x[0]), hn::Abs(x[1]))));
    const auto factor = hn::Set(d, largest > 0 ? kLargest / largest : 0.0F);
    auto sum = hn::Zero(di);
    HWY_ALIGN int8_t high[64] = {}, low[64] = {};
    for (int k = 0; k < 2; ++k) {
        const Ints all = hn::NearestInt(hn::Mul(x[k], factor));
        const Ints upper = hn::ShiftRight<8>(hn::Add(all, hn::Set(di, 128)));
        hn::Store(hn::DemoteTo(bytes, upper), bytes, high + k * kLanes);
        hn::Store(hn::DemoteTo(bytes, hn::Sub(all, hn::ShiftLeft<8>(upper))), bytes, low + k * kLanes);
        sum = hn::Add(sum, all);
    }
    out.step = largest / kLargest;
    out.offset = 128 * hn::GetLane(hn::SumOfLanes(di, sum));
    for (int j = 0; j < 4; ++j) {
        // Lane i of 128 bits: the four bytes j or, for odd i, j + 4.
        const Ints which = hn::Add(hn::Set(di, j), hn::And(hn::Iota(di, 0), hn::Set(di, 4)));
        const auto order = hn::IndicesFromVec(di, which);
        for (const auto& [from, to] : {std::pair{high, out.high[j]}, std::pair{low, out.low[j]}}) {
            const Ints four = hn::Load(di, reinterpret_cast<const int32_t*>(from));
            hn::Store(hn::TableLookupLanes(four, order), di, reinterpret_cast<int32_t*>(to));
        }
    }
}

// Transposes the blocks of four pairs of rows: columns[j] has in its lanes of 128 bits the four bytes j of
// the first rows of the pairs, their four bytes j + 4, and then those of the second rows. Bytes are 128 above
// theirs.
static HWY_INLINE void LoadColumns(const char* const (&rows)[kTile], int first, int64_t offset,
                                   Words (&columns)[4]) {
    const hn::Repartition<uint8_t, D> bytes;
    const hn::Half<decltype(bytes)> half;
    const hn::Repartition<uint32_t, D> words;
    const hn::Repartition<uint64_t, D> pairs;
    Words x[4];
    for (int i = 0; i < 4; ++i) {
        const auto load = [&](int row) {
            return hn::LoadU(half, reinterpret_cast<const uint8_t*>(rows[row] + offset));
        };
        const auto both = hn::Combine(bytes, load(first + i + kTile / 2), load(first + i));
        x[i] = hn::BitCast(words, hn::Xor(both, hn::Set(bytes, 0x80)));
    }
    for (int upper = 0; upper < 2; ++upper) {
        const auto interleave = [&](Words a, Words b) {
            return hn::BitCast(
                pairs, upper == 0 ? hn::InterleaveLower(words, a, b) : hn::InterleaveUpper(words, a, b));
        };
        const auto ab = interleave(x[0], x[1]), cd = interleave(x[2], x[3]);
        columns[2 * upper] = hn::BitCast(words, hn::InterleaveLower(pairs, ab, cd));
        columns[2 * upper + 1] = hn::BitCast(words, hn::InterleaveUpper(pairs, ab, cd));
    }
}

static HWY_INLINE Ints ProductOfColumns(const Words (&columns)[4], const BlockQuery& query) {
    const DInts d;
    Ints high = hn::Zero(d), low = hn::Zero(d);
    for (int j = 0; j < 4; ++j) {
        const auto add = [&](Ints sum, const int8_t* bytes) {
            const Ints x = hn::Load(d, reinterpret_cast<const int32_t*>(bytes));
            return Ints{_mm512_dpbusd_epi32(sum.raw, columns[j].raw, x.raw)};
        };
        high = add(high, query.high[j]);
        low = add(low, query.low[j]);
    }
    return hn::Add(hn::ShiftLeft<8>(high), low);
}

// Products of N query heads with Q8_0 keys, as Products() makes them.
template <int N>
static void ProductsOfBlocks(const CachedRows& keys, const float* queries, float* scores) {
    const D d;
    const DInts di;
    const int64_t blocks = keys.head_dim / attention::kRowBlock;
    BlockQuery rounded[kMostBlocks][N];
    for (int64_t b = 0; b < blocks; ++b) {
        for (int h = 0; h < N; ++h)
            RoundQuery(queries + h * keys.head_dim + b * attention::kRowBlock, rounded[b][h]);
    }
    // Scales are copied a tile before they are loaded as vectors: a load must not wait for stores.
    alignas(64) uint16_t scales[2][kMostBlocks][kTile];
    const auto copy_scales = [&](int64_t tile) {
        for (int64_t b = 0; b < blocks; ++b) CopyScales(keys, tile * kTile, kTile, b, scales[tile % 2][b]);
    };
    copy_scales(0);
    for (int64_t first = 0; first < keys.count; first += kTile) {
        const int64_t tile = first / kTile;
        if (first + kTile < keys.count) copy_scales(tile + 1);
        // After the last key, the last one.
        const char* rows[kTile] = {Row<Q8Blocks>(keys, first).row};
        for (int64_t i = 1; i < kTile; ++i)
            rows[i] = rows[i - 1] + (first + i < keys.count ? keys.stride : 0);
        hn::Vec<D> sums[N];
        for (auto& sum : sums) sum = hn::Zero(d);
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t offset = b * Q8Blocks::kBytes + static_cast<int64_t>(sizeof(uint16_t));
            // Two blocks are about a cache line, for which half of the rows are fetched with each of the two:
            // fetching all at once would hold up the loads.
            for (int64_t i = 0; i < kTile / 2; ++i)
                __builtin_prefetch(rows[b % 2 * (kTile / 2) + i] + offset + kAhead * keys.stride);
            Words even[4], odd[4];
            LoadColumns(rows, 0, offset, even);
            LoadColumns(rows, 4, offset, odd);
            const auto scale = LoadScales(scales[tile % 2][b]);
            for (int h = 0; h < N; ++h) {
                const BlockQuery& query = rounded[b][h];
                const Ints x = ProductOfColumns(even, query), y = ProductOfColumns(odd, query);
                // Adds the halves of the blocks, and brings rows into their order.
                const Ints all =
                    hn::Add(hn::OddEvenBlocks(y, x), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(x, y)));
                const auto product = hn::ConvertTo(d, hn::Sub(all, hn::Set(di, query.offset)));
                sums[h] = hn::MulAdd(product, hn::Mul(scale, hn::Set(d, query.step)), sums[h]);
            }
        }
        for (int h = 0; h < N; ++h)
            hn::StoreU(sums[h], d, scores + h * attention::ChunkWeights::kStride + first);
    }
}

#endif

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
