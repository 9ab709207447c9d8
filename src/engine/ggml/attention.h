// Causal attention over the KV cache as custom ggml nodes, for any number of tokens of any sequences in the
// cache, with sliding window, ALiBi and soft cap. Either fused, or as two nodes: probabilities, and values
// weighted by given probabilities. Grouped-query attention: query heads of one KV head share its reads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "core/thread_placement.h"
#include "engine/ggml/attention_step.h"
#include "engine/ggml/handles.h"
#include "engine/ggml/prefill_attention.h"
#include "engine/ggml/spin_barrier.h"

namespace refold {

// Rules for scores that all layers share.
struct AttentionRules {
    float softcap = 0.0F;    // cap * tanh(score / cap); 0: off
    float max_alibi = 0.0F;  // ALiBi: the largest bias, from which ggml derives slopes; 0: off
};

// What distinguishes the query heads of a layer.
struct AttentionHeads {
    // Numbers of the heads whose ALiBi slopes they have; empty: 0, 1, 2, ...
    std::vector<int64_t> numbers;
    // F32 [heads]: a score in each head's softmax that weights no value; null: none.
    const ggml_tensor* sinks = nullptr;
};

// ALiBi slopes by head, as ggml's soft_max_ext and flash_attn_ext derive them; empty without a bias.
std::vector<float> alibi_slopes(int64_t n_head, float max_bias);

// One object serves all attention nodes of a graph, which run one after the other: it holds their parameters
// and the threads' buffers.
//
// Shapes, innermost dimension first:
//   queries        F32 [heads * head_dim, tokens]
//   keys, values   F16 or F32 [head_dim, cached, kv_heads]: views of the cache that already hold the rows of
//                  this step; query head h reads KV head h * kv_heads / heads
//   seen           I32 [2, tokens]: the cached row where the token's sequence begins, and the token's own,
//                  which grows from token to token within a sequence
//   probabilities  F16 or F32 [longest, tokens, heads]: cached rows counted from the start of the sequence
// The innermost dimension is contiguous, all other strides are free. A token sees the last `window` rows of
// its sequence up to its own; 0: all.
class Attention {
public:
    // For nodes of at most n_head query heads (with ALiBi, their numbers are below n_head), for tokens
    // that see at most `longest` rows, and for at most `threads` threads.
    Attention(int64_t n_head, int64_t head_dim, AttentionRules rules, int64_t longest, int threads);
    Attention(const Attention&) = delete;
    Attention& operator=(const Attention&) = delete;

    // softmax(rules(scale * keys^T queries)) * values: F32 [heads * head_dim, tokens].
    ggml_tensor* node(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys, ggml_tensor* values,
                      ggml_tensor* seen, float scale, int64_t window, const AttentionHeads& heads = {});

    // softmax(rules(scale * keys^T queries)): [longest, tokens, heads] of `type`, F16 or F32. Entries of rows
    // that a token does not see are not written.
    ggml_tensor* probabilities(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys,
                               ggml_tensor* seen, float scale, int64_t window, int64_t longest,
                               ggml_type type, const AttentionHeads& heads = {});

    // Values weighted by probabilities that were computed with this window: F32 [heads * head_dim, tokens].
    // Entries of rows that a token does not see are not read. `selected` I32 [tokens] picks tokens of the
    // probabilities, one per token of the result; null: all. `seen` describes the tokens of the result.
    ggml_tensor* apply(ggml_context* context, ggml_tensor* probabilities, ggml_tensor* values,
                       ggml_tensor* seen, int64_t window, ggml_tensor* selected = nullptr);

    // Accumulated attention of the rows of one sequence (H2O, Zhang et al., 2023): F32 [longest, kv_heads],
    // probabilities summed over tokens and over the query heads of a KV head; 0 for rows that no token sees.
    // `window` is the one the probabilities were computed with.
    ggml_tensor* column_sums(ggml_context* context, ggml_tensor* probabilities, ggml_tensor* seen,
                             int64_t window, int64_t kv_heads);

private:
    // User data of a node.
    struct Node {
        Attention* attention;
        float scale;
        int64_t window;
        std::vector<float> slopes;  // ALiBi by head, times log2(e); empty: those of the first heads
        std::vector<float> sinks;   // by head, times log2(e); empty: none
    };
    Node* node_of(float scale, int64_t window, const AttentionHeads& heads = {});
    template <void (Attention::*operation)(ggml_tensor*, const Node&, int, int)>
    static void compute(ggml_tensor* dst, int thread, int threads, void* node) {
        const auto* n = static_cast<const Node*>(node);
        n->attention->placement_.here(thread);
        (n->attention->*operation)(dst, *n, thread, threads);
    }
    void compute_attention(ggml_tensor* dst, const Node& node, int thread, int threads);
    void compute_probabilities(ggml_tensor* dst, const Node& node, int thread, int threads);
    void compute_applied(ggml_tensor* dst, const Node& node, int thread, int threads);
    void compute_column_sums(ggml_tensor* dst, const Node& node, int thread, int threads);

    AttentionStep step_of(const ggml_tensor* seen, int64_t heads, int64_t kv_heads, ggml_type cached,
                          const Node& node) const;
    // Makes room for the results of all chunks where a node of so many tokens, which see up to `rows` rows,
    // may be cut into them.
    void make_room(int64_t tokens, int64_t heads, const ggml_tensor* cache);

    // Decode: runs of few tokens per sequence, taken token by token. A token with the query heads of one KV
    // head is a unit.
    struct Unit;
    struct UnitChunk;
    // The results of a chunk, or those of all chunks: maximum [group], sum [group], out [group][stride], and
    // the largest scores up to each tile [kChunkTiles][group].
    struct UnitResult {
        attention::Softmax softmax;
        float* tile_maximum;
    };
    int64_t result_stride() const { return attention::whole_vectors(head_dim_); }
    int64_t result_floats(int64_t group) const {
        return group * (2 + attention::kChunkTiles + result_stride());
    }
    UnitResult result_at(float* at, int64_t group) const;
    // Whether the chunks of the units are work items of their own, for `threads` threads.
    bool cuts_into_chunks(const AttentionStep& step, int threads) const;
    // Calls of_chunk(unit, chunk, result of the chunk) for all chunks of the units of a step, and then
    // of_unit(unit, result of all its chunks); with_out: merges the weighted values too. Other work items are
    // tiles(item).
    template <class OfChunk, class OfUnit, class Tiles>
    void for_units(const AttentionStep& step, bool with_out, int thread, int threads, OfChunk of_chunk,
                   OfUnit of_unit, Tiles tiles);
    void begin_total(const AttentionStep& step, const Unit& unit, bool with_out,
                     const UnitResult& total) const;
    // Calls visit(first head, heads) for groups of heads of a unit that one pass serves.
    template <class Do>
    static void for_head_groups(const AttentionStep& step, const Unit& unit, Do visit);
    void score(const AttentionStep& step, const Unit& unit, const UnitChunk& chunk, int64_t head,
               int64_t heads, const ggml_tensor* queries, const ggml_tensor* keys,
               const attention::ScoreRules& rules, int thread);
    void weigh_values(const AttentionStep& step, const Unit& unit, const UnitChunk& chunk, int64_t head,
                      int64_t heads, const ggml_tensor* values, const UnitResult& result, int thread);

    int64_t head_dim_;
    AttentionRules rules_;
    std::vector<float> slopes_;  // by head, times log2(e); empty without ALiBi
    // By scale, window and heads.
    std::map<std::tuple<float, int64_t, std::vector<int64_t>, const ggml_tensor*>, Node> nodes_;
    struct ThreadScratch {
        attention::ChunkWeights weights;
        std::vector<float> queries;  // [kHeadsPerPass][head_dim], times the factor of scores
        std::vector<float> results;  // of a chunk, and of all chunks of a unit
    };
    std::vector<ThreadScratch> threads_;
    // Results of all chunks of a node that is cut into them: [unit][chunk], result_floats() each. Not
    // initialized, so that memory is only used as far as contexts are long.
    std::unique_ptr<float[]> chunk_results_;
    size_t chunk_results_size_ = 0;
    int64_t longest_;
    ThreadPlacement placement_;
    SpinBarrier barrier_;
    AttentionWorkQueue work_;
    PrefillAttention prefill_;
};

}  // namespace refold
