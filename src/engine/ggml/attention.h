// Attention of a few new tokens over the cache, for decoding: the query heads of a group read each cached key
// and value once together. ggml's own operation (used for prefill) reads them once per query head.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/ggml/handles.h"

namespace refold {

// How scores become probabilities; the same at all positions.
struct AttentionRules {
    float softcap = 0.0F;    // cap * tanh(score / cap); 0: off
    float max_alibi = 0.0F;  // ALiBi: slopes as ggml derives them from the largest bias; 0: off
};

// What the operation needs to know besides its tensors; one object serves all positions of a graph.
class DecodeAttention {
public:
    // Up to this many tokens of a step are attended by this operation.
    static constexpr int64_t kMaxTokens = 4;

    // For nodes of at most n_head query heads, n_head exactly with ALiBi.
    DecodeAttention(int64_t n_head, int64_t head_dim, AttentionRules rules, int64_t max_cached, int threads);
    DecodeAttention(const DecodeAttention&) = delete;
    DecodeAttention& operator=(const DecodeAttention&) = delete;

    // Node: out [heads * head_dim, tokens] of queries of that shape over the cache tensor
    // [head_dim, rows, 2 * key/value heads] in F16 or F32 (key heads, then value heads), after this step's
    // rows were written. Token t sees the last `window` (0: all) of rows 0..positions[t]; products are
    // multiplied by `scale`.
    ggml_tensor* node(ggml_context* context, ggml_tensor* queries, ggml_tensor* cache, ggml_tensor* positions,
                      float scale, int64_t window);

private:
    // What a node points to.
    struct Node {
        DecodeAttention* attention;
        float scale;
        int64_t window;
    };
    static void compute(ggml_tensor* dst, int thread, int threads, void* node);
    void attend(ggml_tensor* dst, const Node& node, int thread, int threads);
    void merge(ggml_tensor* dst, int64_t n_head, int64_t chunks, int thread, int threads) const;
    // All threads of the operation meet here.
    void wait(int threads);

    int64_t head_dim_;
    AttentionRules rules_;
    std::vector<float> slopes_;                        // by head; empty without ALiBi
    std::map<std::pair<float, int64_t>, Node> nodes_;  // by scale and window
    std::vector<float> partial_;  // [chunk][token][head][2 + head_dim]: maximum, sum, weighted values
    std::vector<std::vector<float>> scores_;  // per thread [query heads of a group][cached]
    std::atomic<int> arrived_{0}, generation_{0};
};

}  // namespace refold
