// Attention over the cache as ggml nodes of our own, for any number of tokens: causal, with a window, ALiBi
// and soft cap; whole, or in two halves: probabilities, and values weighted by given probabilities. Query
// heads that share a key/value head read it once together.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/ggml/attention_step.h"
#include "engine/ggml/handles.h"
#include "engine/ggml/prefill_attention.h"

namespace refold {

// How scores become probabilities; the same at all positions.
struct AttentionRules {
    float softcap = 0.0F;    // cap * tanh(score / cap); 0: off
    float max_alibi = 0.0F;  // ALiBi: slopes as ggml derives them from the largest bias; 0: off
};

// What the operations need to know besides their tensors; one object serves all positions of a graph, whose
// nodes run one after the other.
//
// Shapes: queries F32 [heads * head_dim, tokens]; keys and values [head_dim, cached, kv heads] in F16 or F32,
// views of the cache after this step's rows were written (query head h reads key/value head
// h * kv heads / heads); probabilities [cached, tokens, heads] in F16 or F32; positions I32 [tokens].
// Features of a token, numbers of a cached row, and probabilities of a token are contiguous; all other
// strides are free. Token t sees the last `window` (0: all) of rows 0..positions[t]; positions increase by
// one.
class Attention {
public:
    // Up to this many tokens are taken one by one, their cached rows shared between the threads.
    static constexpr int64_t kFewTokens = 4;

    // For nodes of at most n_head query heads (n_head exactly with ALiBi), `cached` rows and `threads`
    // threads.
    Attention(int64_t n_head, int64_t head_dim, AttentionRules rules, int64_t cached, int threads);
    Attention(const Attention&) = delete;
    Attention& operator=(const Attention&) = delete;

    // softmax(rules(scale * keys^T queries)) * values: F32 [heads * head_dim, tokens].
    ggml_tensor* node(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys, ggml_tensor* values,
                      ggml_tensor* positions, float scale, int64_t window);

    // softmax(rules(scale * keys^T queries)): [cached, tokens, heads] of `type`, F16 or F32. What a token
    // does not see is not written.
    ggml_tensor* probabilities(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys,
                               ggml_tensor* positions, float scale, int64_t window, ggml_type type);

    // Values weighted by probabilities that were computed with this window: F32 [heads * head_dim, tokens].
    // What a token does not see is not read. Given views of the last tokens of probabilities and positions,
    // the result is theirs.
    ggml_tensor* apply(ggml_context* context, ggml_tensor* probabilities, ggml_tensor* values,
                       ggml_tensor* positions, int64_t window);

    // F32 [cached, kv heads]: the sum over tokens and the query heads of a key/value head of probabilities
    // that were computed with this window; 0 where no token sees a row. H2O's accumulated attention.
    ggml_tensor* column_sums(ggml_context* context, ggml_tensor* probabilities, ggml_tensor* positions,
                             int64_t window, int64_t kv_heads);

private:
    // What a node points to.
    struct Node {
        Attention* attention;
        float scale;
        int64_t window;
    };
    Node* node_of(float scale, int64_t window);
    template <void (Attention::*operation)(ggml_tensor*, const Node&, int, int)>
    static void compute(ggml_tensor* dst, int thread, int threads, void* node) {
        const auto* n = static_cast<const Node*>(node);
        (n->attention->*operation)(dst, *n, thread, threads);
    }
    void compute_attention(ggml_tensor* dst, const Node& node, int thread, int threads);
    void compute_probabilities(ggml_tensor* dst, const Node& node, int thread, int threads);
    void compute_applied(ggml_tensor* dst, const Node& node, int thread, int threads);
    void compute_column_sums(ggml_tensor* dst, const Node& node, int thread, int threads);

    AttentionStep step_of(int64_t tokens, int64_t heads, int64_t kv_heads, const ggml_tensor* positions,
                          const Node& node) const;

    // Few tokens.
    struct Piece;
    struct Total {
        float maximum, sum;
    };
    template <class Do>
    void for_pieces(const AttentionStep& step, int thread, int threads, Do piece);
    float* partial(const AttentionStep& step, int64_t chunk, int64_t token, int64_t head);
    float* score(const AttentionStep& step, const Piece& piece, const ggml_tensor* queries,
                 const ggml_tensor* keys, const attention::ScoreRules& rules);
    Total total_of(const AttentionStep& step, int64_t token, int64_t head, int64_t chunks);
    void merge(ggml_tensor* dst, const AttentionStep& step, int thread, int threads);
    // All threads of the operation meet here.
    void wait(int threads);

    int64_t head_dim_;
    AttentionRules rules_;
    std::vector<float> slopes_;                        // by head, times log2(e); empty without ALiBi
    std::map<std::pair<float, int64_t>, Node> nodes_;  // by scale and window
    // Of few tokens: [chunk][token][head][2 + head_dim]: maximum, sum, weighted values.
    std::vector<float> partial_;
    std::vector<std::vector<float>> weights_;  // per thread [kTogether][cached in whole vectors]
    std::atomic<int> arrived_{0}, generation_{0};
    PrefillAttention prefill_;
};

}  // namespace refold
