// Attention over the cache as ggml nodes of our own, for any number of tokens: causal, with a window, ALiBi
// and soft cap; whole, or in two halves: probabilities, and values weighted by given probabilities. Query
// heads that share a key/value head read it once together. Tokens may be of any sequences whose rows the
// cache holds.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/ggml/attention_step.h"
#include "engine/ggml/handles.h"
#include "engine/ggml/meeting.h"
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
// h * kv heads / heads); seen I32 [2, tokens]: the first cached row of a token's sequence, and its own, which
// grows from token to token of one sequence; probabilities [longest, tokens, heads] in F16 or F32, rows of
// the cache counted from the first one of the sequence. Features of a token, numbers of a cached row, and
// probabilities of a token are contiguous; all other strides are free. A token sees the last `window` (0:
// all) of its sequence's rows up to its own.
class Attention {
public:
    // For nodes of at most n_head query heads (n_head exactly with ALiBi), tokens that see at most `longest`
    // rows, and `threads` threads.
    Attention(int64_t n_head, int64_t head_dim, AttentionRules rules, int64_t longest, int threads);
    Attention(const Attention&) = delete;
    Attention& operator=(const Attention&) = delete;

    // softmax(rules(scale * keys^T queries)) * values: F32 [heads * head_dim, tokens].
    ggml_tensor* node(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys, ggml_tensor* values,
                      ggml_tensor* seen, float scale, int64_t window);

    // softmax(rules(scale * keys^T queries)): [longest, tokens, heads] of `type`, F16 or F32. What a token
    // does not see is not written.
    ggml_tensor* probabilities(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys,
                               ggml_tensor* seen, float scale, int64_t window, int64_t longest,
                               ggml_type type);

    // Values weighted by probabilities that were computed with this window: F32 [heads * head_dim, tokens].
    // What a token does not see is not read. `selected` I32 [tokens]: of which tokens of the probabilities
    // the result is, in their order; null: of all. `seen` is that of the result's tokens.
    ggml_tensor* apply(ggml_context* context, ggml_tensor* probabilities, ggml_tensor* values,
                       ggml_tensor* seen, int64_t window, ggml_tensor* selected = nullptr);

    // F32 [longest, kv heads]: the sum over tokens and the query heads of a key/value head of probabilities
    // that were computed with this window; 0 where no token sees a row. H2O's accumulated attention, of one
    // sequence.
    ggml_tensor* column_sums(ggml_context* context, ggml_tensor* probabilities, ggml_tensor* seen,
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

    AttentionStep step_of(const ggml_tensor* seen, int64_t heads, int64_t kv_heads, const Node& node) const;

    // Few tokens of each sequence.
    struct Piece;
    struct Scored {
        float maxima[attention::kTogether] = {}, sums[attention::kTogether] = {};
        // Both of every head, `stride` floats apart.
        void put(float* out, int64_t heads, int64_t stride) const {
            for (int64_t h = 0; h < heads; ++h, out += stride) {
                out[0] = maxima[h];
                out[1] = sums[h];
            }
        }
    };
    struct Total {
        float maximum, sum;
    };
    template <class Do>
    void for_heads(const AttentionStep& step, Piece piece, int thread, Do part);
    template <class Do>
    void for_pieces(const AttentionStep& step, int64_t chunks, int thread, int threads, Do piece);
    template <class Do>
    void for_whole(const AttentionStep& step, const AttentionUnit& unit, int thread, Do part);
    Scored score(const AttentionStep& step, const Piece& piece, const ggml_tensor* queries,
                 const ggml_tensor* keys, const attention::ScoreRules& rules) const;
    void weigh(const AttentionStep& step, const Piece& piece, const ggml_tensor* values, float* out,
               int64_t stride) const;
    float* partial(const AttentionStep& step, int64_t chunk, int64_t token, int64_t head);
    Total total_of(const AttentionStep& step, int64_t token, int64_t head, int64_t chunks);
    void merge(ggml_tensor* dst, const AttentionStep& step, int64_t chunks, int thread, int threads);

    int64_t head_dim_;
    AttentionRules rules_;
    std::vector<float> slopes_;                        // by head, times log2(e); empty without ALiBi
    std::map<std::pair<float, int64_t>, Node> nodes_;  // by scale and window
    // Of pieces of a sequence: [chunk][token][head][2 + head_dim]: maximum, sum, weighted values.
    std::vector<float> partial_;
    std::vector<std::vector<float>> weights_;  // per thread [kTogether][longest in whole vectors]
    Meeting meeting_;
    AttentionUnits units_;
    PrefillAttention prefill_;
};

}  // namespace refold
