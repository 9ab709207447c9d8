// Attention kernels for few query rows, and types shared with the kernels for tiles. Scores are in base 2
// (times log2(e)), so that a weight is 2^(score - maximum).
#pragma once

#include <cstddef>
#include <cstdint>

namespace refold::attention {

constexpr float kLog2E = 1.44269504088896340736F;

// Rows [begin, end) of the cache.
struct RowRange {
    int64_t begin = 0, end = 0;
    int64_t count() const { return end - begin; }
};

// Types of cached rows: those of ggml's that the cache may have.
enum class RowType { f32, f16, q8_0, q4_0 };
constexpr int64_t kRowBlock = 32;  // numbers of a block of Q8_0 and Q4_0; head_dim is a multiple of it

// Keys or values of one KV head: `count` rows of head_dim numbers, `stride` bytes apart.
struct CachedRows {
    const void* data;
    size_t stride;
    int64_t count, head_dim;
    RowType type;
};

// Score of a query-key product: factor * product, or with a soft cap cap * tanh(factor * product).
struct ScoreRules {
    float factor, cap;
    ScoreRules(float scale, float softcap)
        : factor(softcap > 0 ? scale / softcap : scale * kLog2E), cap(softcap * kLog2E) {}
};

// A number of floats, rounded up to the widest vector of any CPU.
constexpr int64_t whole_vectors(int64_t count) { return (count + 15) / 16 * 16; }

// One order of sums, whatever computes them. The rows of a sequence are cut into chunks of kChunkRows,
// counted from its first row, and these into tiles. Within a chunk softmax is online from tile to tile; the
// results of chunks are merged in their order (merge()). So the result of a query does not depend on the
// kernel, on the queries beside it, or on which thread has which chunk.
constexpr int64_t kTileKeys = 128;   // cached rows of a tile
constexpr int64_t kChunkRows = 256;  // whole tiles
constexpr int64_t kChunkTiles = kChunkRows / kTileKeys;
constexpr RowRange chunk_rows(int64_t chunk) { return {chunk * kChunkRows, (chunk + 1) * kChunkRows}; }

// Softmax of query rows over some cached rows, before normalization: the largest score, the sum of the
// weights 2^(score - maximum), and the values weighted by them.
struct Softmax {
    float* maximum;  // [rows]; -infinity: no cached row yet
    float* sum;      // [rows]
    float* out;      // [rows][stride]
    int64_t stride;  // at least whole_vectors(width)
};
// Brings `total` up to date with the result of the next chunk, for `rows` rows of `width` numbers, which may
// be none.
void merge(int64_t rows, int64_t width, const Softmax& chunk, const Softmax& total);

// Query heads of a KV head that one pass over its rows serves: their accumulators fit into the registers.
constexpr int64_t kHeadsPerPass = 4;

// Up to kHeadsPerPass query heads of one KV head.
struct FewQueries {
    const float* queries;  // [heads][head_dim], times ScoreRules::factor
    int64_t heads;
    const float* slopes;  // ALiBi [heads], times log2(e); null: off
    int64_t distance;     // from the first row of the chunk to the query, in tokens
};

// The weights of some heads in one chunk.
struct ChunkWeights {
    // Between heads: as vectors reach beyond the last row.
    static constexpr int64_t kStride = kChunkRows + whole_vectors(1);
    alignas(64) float weights[kHeadsPerPass][kStride];  // relative to the largest score up to the row's tile
    float tile_maximum[kHeadsPerPass][kChunkTiles];     // that score
    float factor[kHeadsPerPass][kChunkTiles];           // from the tile before to this one
    float maximum[kHeadsPerPass], sum[kHeadsPerPass];   // of the chunk
};

// Softmax over the rows `keys` of a chunk, from row `first` of the chunk on. For rows of Q8_0, CPUs with VNNI
// round queries to 16 bits, relative to the largest number of each block of 32; so does weight_few with
// weights on every x86 CPU, relative to the largest of a tile. Kernels for many queries do not.
void score_few(const CachedRows& keys, int64_t first, const FewQueries& queries, float cap,
               ChunkWeights& weights);

// out[h] = sum over i of weights[h][first + i] * value i, times the factors of the tiles after it, for up to
// kHeadsPerPass heads: out [heads][out_stride].
void weight_few(const CachedRows& values, int64_t first, int64_t heads, const ChunkWeights& weights,
                float* out, int64_t out_stride);

struct FloatArray {
    void* data;
    bool half;  // F16, else F32
};
// to[i] = factor * from[i]. May be in place.
void scale(FloatArray from, int64_t count, float factor, FloatArray to);

// sums[i] += x[i]
void add(FloatArray x, int64_t count, float* sums);

}  // namespace refold::attention
