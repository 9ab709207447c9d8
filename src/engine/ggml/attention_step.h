// What the operations of attention know of a step.
#pragma once

#include <ggml.h>

#include <algorithm>
#include <cstdint>

#include "engine/ggml/attention_kernels.h"

namespace refold {

// Rows of a sequence are counted from its first one, wherever in the cache that lies.
struct AttentionStep {
    int64_t tokens, heads, kv_heads, window;
    const int32_t* seen;      // [tokens][2]: the first cached row of the token's sequence, and its own
    const float* slopes;      // ALiBi's by head, times log2(e); null without
    const int32_t* selected;  // [tokens]: which tokens of given probabilities they are; null: all, in order

    int64_t group() const { return heads / kv_heads; }
    int64_t first_row(int64_t token) const { return seen[2 * token]; }
    attention::RowRange visible(int64_t token) const {
        const int64_t end = seen[2 * token + 1] - seen[2 * token] + 1;
        return {window > 0 ? std::max<int64_t>(0, end - window) : 0, end};
    }
    // The token comes behind the one before it in the same sequence.
    bool continues(int64_t token) const {
        return seen[2 * token] == seen[2 * token - 2] && seen[2 * token + 1] > seen[2 * token - 1];
    }
    int64_t given(int64_t token) const { return selected == nullptr ? token : selected[token]; }
};

// Keys or values of one head of the sequence whose rows begin at `first`.
inline attention::CachedRows cached_rows(const ggml_tensor* cache, int64_t head, int64_t first,
                                         attention::RowRange rows) {
    const auto offset =
        static_cast<size_t>(first + rows.begin) * cache->nb[1] + static_cast<size_t>(head) * cache->nb[2];
    return {static_cast<const char*>(cache->data) + offset, cache->nb[1], rows.end - rows.begin, cache->ne[0],
            cache->type == GGML_TYPE_F16};
}

// The features of a token, from `head` on.
inline float* head_of(const ggml_tensor* x, int64_t token, int64_t head, int64_t head_dim) {
    return reinterpret_cast<float*>(static_cast<char*>(x->data) + static_cast<size_t>(token) * x->nb[1]) +
           head * head_dim;
}

// The probabilities of a token and head, from `row` of the sequence on.
inline attention::Numbers probabilities_of(const ggml_tensor* x, int64_t token, int64_t head, int64_t row) {
    const auto offset = static_cast<size_t>(token) * x->nb[1] + static_cast<size_t>(head) * x->nb[2] +
                        static_cast<size_t>(row) * x->nb[0];
    return {static_cast<char*>(x->data) + offset, x->type == GGML_TYPE_F16};
}

}  // namespace refold
