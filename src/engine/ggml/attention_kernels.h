// Inner loops of attention for few query rows, in the CPU's widest vectors. Scores count in powers of two:
// the logarithms of the weights times log2(e).
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

// Rows [0, count) of keys or values of one head, `stride` bytes apart, head_dim numbers each.
struct CachedRows {
    const void* data;
    size_t stride;
    int64_t count, head_dim;
    bool half;  // F16, else F32
};

// How the product of a query and a key becomes a score: factor * product, then with a cap
// cap * tanh(factor * product).
struct ScoreRules {
    float factor, cap;
    ScoreRules(float scale, float softcap)
        : factor(softcap > 0 ? scale / softcap : scale * kLog2E), cap(softcap * kLog2E) {}
};

// Floats that hold `count` of them and fill the vectors of any CPU.
constexpr int64_t whole_vectors(int64_t count) { return (count + 15) / 16 * 16; }

// As many query heads share the keys and values that they read.
constexpr int64_t kTogether = 3;

// Up to kTogether query heads over one key head.
struct FewQueries {
    const float* queries;  // [heads][head_dim]
    int64_t heads;
    const float* slopes;  // ALiBi's, times log2(e), one per head; null without
    int64_t distance;     // of the query to the first cached row
};

// weights[h][i] = 2^(score of head h and key i - their largest), `stride` (whole vectors of keys.count)
// floats apart; maxima[h] that largest, sums[h] the sum of the weights.
void score_few(const CachedRows& keys, const FewQueries& queries, const ScoreRules& rules, float* weights,
               int64_t stride, float* maxima, float* sums);

// out[h] = sum over i of weights[h][i] * value i, for up to kTogether heads.
void weight_few(const CachedRows& values, int64_t heads, const float* weights, int64_t stride, float* out,
                int64_t out_stride);

// to[i] = factor * from[i], each F16 or F32; in place too.
struct Numbers {
    void* data;
    bool half;
};
void scale(Numbers from, int64_t count, float factor, Numbers to);

// sums[i] += x[i]
void add(Numbers x, int64_t count, float* sums);

}  // namespace refold::attention
