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

// Query heads of a KV head that one pass over its rows serves: their accumulators fit into the registers.
constexpr int64_t kHeadsPerPass = 3;

// Up to kHeadsPerPass query heads of one KV head.
struct FewQueries {
    const float* queries;  // [heads][head_dim]
    int64_t heads;
    const float* slopes;  // ALiBi [heads], times log2(e); null: off
    int64_t distance;     // from the first cached row to the query, in tokens
};

// Softmax before normalization: weights [heads][stride] = 2^(score of head h and key i - maxima[h]), where
// maxima[h] is the largest score and sums[h] the sum of the weights. stride = whole_vectors(keys.count);
// weights of the padding are 0. For rows of Q8_0, CPUs with VNNI round queries to 16 bits, relative to the
// largest number of each block of 32; so does weight_few with weights on every x86 CPU, relative to the
// largest of 256 rows.
void score_few(const CachedRows& keys, const FewQueries& queries, const ScoreRules& rules, float* weights,
               int64_t stride, float* maxima, float* sums);

// out[h] = sum over i of weights[h][i] * value i for up to kHeadsPerPass heads: weights [heads][stride], out
// [heads][out_stride].
void weight_few(const CachedRows& values, int64_t heads, const float* weights, int64_t stride, float* out,
                int64_t out_stride);

struct FloatArray {
    void* data;
    bool half;  // F16, else F32
};
// to[i] = factor * from[i]. May be in place.
void scale(FloatArray from, int64_t count, float factor, FloatArray to);

// sums[i] += x[i]
void add(FloatArray x, int64_t count, float* sums);

}  // namespace refold::attention
