// The tokens of one step, as the attention operations see them.
#pragma once

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/ggml/attention_kernels.h"

namespace refold {

// Runs of at most this many tokens, with rows of this type in the cache, are taken token by token. Kernels
// for few tokens have another precision with rows of Q8_0, so they also take what is verified together there
// (--lookup, --exact).
constexpr int64_t few_tokens(ggml_type cached) { return cached == GGML_TYPE_Q8_0 ? 16 : 4; }

// Rows of a sequence are counted from its first one, wherever in the cache it begins.
struct AttentionStep {
    int64_t tokens, heads, kv_heads, window;
    int64_t few;              // runs of at most this many tokens are taken token by token
    const int32_t* seen;      // [tokens][2]: the cached row where the sequence begins, and the token's own
    const float* slopes;      // ALiBi [heads], times log2(e); null: off
    const float* sinks;       // [heads], times log2(e); null: none
    const int32_t* selected;  // [tokens]: their tokens of the given probabilities; null: the same
    bool given;               // probabilities are given, not computed

    int64_t group() const { return heads / kv_heads; }
    int64_t first_row(int64_t token) const { return seen[2 * token]; }
    // The rows of its sequence that a token sees.
    attention::RowRange visible(int64_t token) const {
        const int64_t end = seen[2 * token + 1] - seen[2 * token] + 1;
        return {window > 0 ? std::max<int64_t>(0, end - window) : 0, end};
    }
    // Whether the token follows the one before it in the same sequence.
    bool continues(int64_t token) const {
        return seen[2 * token] == seen[2 * token - 2] && seen[2 * token + 1] > seen[2 * token - 1];
    }
    int64_t source_token(int64_t token) const { return selected == nullptr ? token : selected[token]; }
};

inline attention::RowType row_type(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16: return attention::RowType::f16;
        case GGML_TYPE_Q8_0: return attention::RowType::q8_0;
        case GGML_TYPE_Q4_0: return attention::RowType::q4_0;
        default: return attention::RowType::f32;
    }
}

// Calls chunk(index, rows) for the chunks that the rows of a sequence lie in.
template <class Do>
void for_chunks(attention::RowRange rows, Do chunk) {
    for (int64_t i = rows.begin / attention::kChunkRows; i * attention::kChunkRows < rows.end; ++i) {
        const attention::RowRange all = attention::chunk_rows(i);
        chunk(i, attention::RowRange{std::max(rows.begin, all.begin), std::min(rows.end, all.end)});
    }
}

// What makes probabilities of weights that are relative to the largest score of their tile's part of a chunk,
// by those of all rows.
inline float to_probabilities(float tile_maximum, float maximum, float sum) {
    return std::exp2(tile_maximum - maximum) / sum;
}

// Keys or values of one KV head: rows of the sequence that begins at row `first` of the cache.
inline attention::CachedRows cached_rows(const ggml_tensor* cache, int64_t head, int64_t first,
                                         attention::RowRange rows) {
    const auto offset =
        static_cast<size_t>(first + rows.begin) * cache->nb[1] + static_cast<size_t>(head) * cache->nb[2];
    return {static_cast<const char*>(cache->data) + offset, cache->nb[1], rows.end - rows.begin, cache->ne[0],
            row_type(cache->type)};
}

// The features of a token, from those of `head` on.
inline float* head_of(const ggml_tensor* x, int64_t token, int64_t head, int64_t head_dim) {
    return reinterpret_cast<float*>(static_cast<char*>(x->data) + static_cast<size_t>(token) * x->nb[1]) +
           head * head_dim;
}

// The probabilities of a token and head, from row `row` of the sequence on.
inline attention::FloatArray probabilities_of(const ggml_tensor* x, int64_t token, int64_t head,
                                              int64_t row) {
    const auto offset = static_cast<size_t>(token) * x->nb[1] + static_cast<size_t>(head) * x->nb[2] +
                        static_cast<size_t>(row) * x->nb[0];
    return {static_cast<char*>(x->data) + offset, x->type == GGML_TYPE_F16};
}

}  // namespace refold
