// Attention of steps with few tokens per sequence, and the choice between it and tiles (prefill_attention.h).
//
// In: queries F32 [token][head][head_dim]; cached rows F16 or F32 [row][head_dim] of one KV head.
// Out: F32 [token][head][head_dim], or probabilities [head][token][row].
//
// Threads: one (token, KV head) pair is a work item. Where there are too few items to occupy all threads, the
// rows of every token are cut into chunks as well (flash decoding): each thread writes maximum, sum of
// weights and weighted values of its chunks, and after a barrier the threads merge them, each for a share of
// (token, head) pairs. Otherwise threads take items from a queue and write results directly.
//
// Loop order: for up to kHeadsPerPass query heads of the group, first the scores of all rows (keys stream
// from memory once), then softmax, then the weighted sum (values stream once). The scores between them stay
// in the thread's buffer [head][row], which the L2 cache holds for all but very long sequences.
#include "engine/ggml/attention.h"

#include <cmath>
#include <limits>
#include <span>

namespace refold {
namespace {

using attention::kHeadsPerPass;
using attention::RowRange;

constexpr int64_t kFewTokens = AttentionWorkQueue::kFewTokens;
// Smallest chunk of cached rows that is worth a thread of its own.
constexpr int64_t kMinChunk = 32;
// With this many work items per thread, taking whole items balances well enough: rows are not split.
constexpr int64_t kEnoughItems = 4;

// ALiBi slopes by head, as ggml's soft_max_ext and flash_attn_ext derive them, times log2(e).
std::vector<float> alibi_slopes(int64_t n_head, float max_bias) {
    std::vector<float> slopes;
    if (max_bias <= 0) return slopes;
    const auto whole = int64_t{1} << static_cast<int>(std::floor(std::log2(static_cast<double>(n_head))));
    const double first = std::pow(2.0, -static_cast<double>(max_bias) / static_cast<double>(whole)),
                 second = std::sqrt(first);
    for (int64_t h = 0; h < n_head; ++h) {
        const double slope = h < whole ? std::pow(first, h + 1) : std::pow(second, 2 * (h - whole) + 1);
        slopes.push_back(static_cast<float>(slope) * attention::kLog2E);
    }
    return slopes;
}

// Floats before the weighted values of a partial result: the largest score and the sum of the weights.
constexpr int64_t kStats = 2;
// Cached rows per work item of column_sums: their sums stay in the L1 cache while all tokens are added.
constexpr int64_t kColumnRows = 2048;

}  // namespace

Attention::Attention(int64_t n_head, int64_t head_dim, AttentionRules rules, int64_t longest, int threads)
    : head_dim_(head_dim),
      rules_(rules),
      slopes_(alibi_slopes(n_head, rules.max_alibi)),
      partial_results_(static_cast<size_t>(threads * std::max(kFewTokens, 2 * kEnoughItems) * n_head *
                                           (kStats + head_dim))),
      weights_(static_cast<size_t>(threads),
               std::vector<float>(static_cast<size_t>(kHeadsPerPass * attention::whole_vectors(longest)))),
      work_(threads),
      prefill_(threads) {}

Attention::Node* Attention::node_of(float scale, int64_t window, const AttentionHeads& heads) {
    Node node{this, scale, window, {}, {}};
    for (const int64_t head : heads.numbers) node.slopes.push_back(slopes_.at(static_cast<size_t>(head)));
    if (heads.sinks != nullptr) {
        const std::span sinks(static_cast<const float*>(heads.sinks->data),
                              static_cast<size_t>(ggml_nelements(heads.sinks)));
        for (const float sink : sinks) node.sinks.push_back(sink * attention::kLog2E);
    }
    return &nodes_.try_emplace({scale, window, heads.numbers, heads.sinks}, std::move(node)).first->second;
}

ggml_tensor* Attention::node(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys,
                             ggml_tensor* values, ggml_tensor* seen, float scale, int64_t window,
                             const AttentionHeads& heads) {
    ggml_tensor* arguments[] = {queries, keys, values, seen};
    return ggml_custom_4d(context, GGML_TYPE_F32, queries->ne[0], queries->ne[1], 1, 1, arguments, 4,
                          compute<&Attention::compute_attention>, GGML_N_TASKS_MAX,
                          node_of(scale, window, heads));
}

ggml_tensor* Attention::probabilities(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys,
                                      ggml_tensor* seen, float scale, int64_t window, int64_t longest,
                                      ggml_type type, const AttentionHeads& heads) {
    ggml_tensor* arguments[] = {queries, keys, seen};
    return ggml_custom_4d(context, type, longest, queries->ne[1], queries->ne[0] / head_dim_, 1, arguments, 3,
                          compute<&Attention::compute_probabilities>, GGML_N_TASKS_MAX,
                          node_of(scale, window, heads));
}

ggml_tensor* Attention::apply(ggml_context* context, ggml_tensor* probabilities, ggml_tensor* values,
                              ggml_tensor* seen, int64_t window, ggml_tensor* selected) {
    ggml_tensor* arguments[] = {probabilities, values, seen, selected};
    return ggml_custom_4d(context, GGML_TYPE_F32, probabilities->ne[2] * head_dim_, seen->ne[1], 1, 1,
                          arguments, selected == nullptr ? 3 : 4, compute<&Attention::compute_applied>,
                          GGML_N_TASKS_MAX, node_of(0.0F, window));
}

ggml_tensor* Attention::column_sums(ggml_context* context, ggml_tensor* probabilities, ggml_tensor* seen,
                                    int64_t window, int64_t kv_heads) {
    ggml_tensor* arguments[] = {probabilities, seen};
    return ggml_custom_4d(context, GGML_TYPE_F32, probabilities->ne[0], kv_heads, 1, 1, arguments, 2,
                          compute<&Attention::compute_column_sums>, GGML_N_TASKS_MAX, node_of(0.0F, window));
}

// One chunk of the rows that a token sees, for up to kHeadsPerPass query heads of one KV head.
struct Attention::TokenChunk {
    int64_t token, kv_head;
    int64_t index, chunks;  // chunk `index` of `chunks`
    int64_t head, heads;    // query heads [head, head + heads)
    RowRange rows;
    float* weights;  // [heads][stride]
    int64_t stride;
};

namespace {

// Number of chunks that the rows of every token are cut into, for at most `threads` threads: not for those of
// this step, so that results do not depend on them. 1: tokens and heads give all threads work, or some
// sequence has enough tokens for tiles.
int64_t chunk_count(const AttentionStep& step, int threads) {
    const int64_t items = step.tokens * step.kv_heads;
    if (items >= kEnoughItems * threads && step.tokens > kFewTokens) return 1;
    bool few = true;
    int64_t longest = 0;
    for_runs(step, [&](int64_t first, int64_t last) {
        few = few && last - first <= kFewTokens;
        longest = std::max(longest, step.visible(last - 1).count());
    });
    if (!few || items % threads == 0) return 1;
    const int64_t chunks = step.tokens <= kFewTokens ? threads : (kEnoughItems * threads - 1) / items + 1;
    return longest > kMinChunk * chunks ? chunks : 1;
}

}  // namespace

template <class Do>
void Attention::for_head_groups(const AttentionStep& step, TokenChunk p, int thread, Do visit) {
    const RowRange seen = step.visible(p.token);
    p.rows = {seen.begin + seen.count() * p.index / p.chunks,
              seen.begin + seen.count() * (p.index + 1) / p.chunks};
    p.weights = weights_[static_cast<size_t>(thread)].data();
    p.stride = attention::whole_vectors(p.rows.count());
    const int64_t first = p.kv_head * step.group(), last = first + step.group();
    for (p.head = first; p.head < last; p.head += p.heads) {
        p.heads = std::min(kHeadsPerPass, last - p.head);
        visit(p);
    }
}

template <class Do>
void Attention::for_chunks(const AttentionStep& step, int64_t chunks, int thread, int threads, Do visit) {
    const int64_t items = step.tokens * step.kv_heads * chunks;
    for (int64_t item = thread; item < items; item += threads) {
        TokenChunk p{};
        p.index = item % chunks;
        p.chunks = chunks;
        p.kv_head = item / chunks % step.kv_heads;
        p.token = item / chunks / step.kv_heads;
        for_head_groups(step, p, thread, visit);
    }
}

// All rows that the token of a single-token item sees, as one chunk.
template <class Do>
void Attention::for_whole_token(const AttentionStep& step, const AttentionWorkItem& item, int thread,
                                Do visit) {
    TokenChunk p{};
    p.chunks = 1;
    p.kv_head = item.kv_head;
    p.token = item.first;
    for_head_groups(step, p, thread, visit);
}

float* Attention::partial_result(const AttentionStep& step, int64_t chunk, int64_t token, int64_t head) {
    return partial_results_.data() +
           ((chunk * step.tokens + token) * step.heads + head) * (kStats + head_dim_);
}

// Writes the weights of a chunk, relative to its own largest scores, to chunk.weights.
Attention::ChunkSoftmax Attention::score(const AttentionStep& step, const TokenChunk& chunk,
                                         const ggml_tensor* queries, const ggml_tensor* keys,
                                         const attention::ScoreRules& rules) const {
    ChunkSoftmax out;
    const attention::FewQueries few{head_of(queries, chunk.token, chunk.head, head_dim_), chunk.heads,
                                    step.slopes == nullptr ? nullptr : step.slopes + chunk.head,
                                    step.visible(chunk.token).end - 1 - chunk.rows.begin};
    attention::score_few(cached_rows(keys, chunk.kv_head, step.first_row(chunk.token), chunk.rows), few,
                         rules, chunk.weights, chunk.stride, out.maxima, out.sums);
    return out;
}

Attention::ChunkSoftmax Attention::score_whole(const AttentionStep& step, const TokenChunk& chunk,
                                               const ggml_tensor* queries, const ggml_tensor* keys,
                                               const attention::ScoreRules& rules) const {
    ChunkSoftmax out = score(step, chunk, queries, keys, rules);
    for (int64_t h = 0; step.sinks != nullptr && h < chunk.heads; ++h)
        out.sums[h] += std::exp2(step.sinks[chunk.head + h] - out.maxima[h]);
    return out;
}

void Attention::weigh_values(const AttentionStep& step, const TokenChunk& chunk, const ggml_tensor* values,
                             float* out, int64_t stride) const {
    attention::weight_few(cached_rows(values, chunk.kv_head, step.first_row(chunk.token), chunk.rows),
                          chunk.heads, chunk.weights, chunk.stride, out, stride);
}

// Combines the statistics of all chunks of a token and head.
Attention::TokenSoftmax Attention::token_softmax(const AttentionStep& step, int64_t token, int64_t head,
                                                 int64_t chunks) {
    TokenSoftmax total{step.sinks == nullptr ? -std::numeric_limits<float>::infinity() : step.sinks[head], 0};
    for (int64_t c = 0; c < chunks; ++c)
        total.maximum = std::max(total.maximum, partial_result(step, c, token, head)[0]);
    for (int64_t c = 0; c < chunks; ++c) {
        const float* part = partial_result(step, c, token, head);
        total.sum += part[1] * std::exp2(part[0] - total.maximum);
    }
    if (step.sinks != nullptr) total.sum += std::exp2(step.sinks[head] - total.maximum);
    return total;
}

void Attention::merge_chunks(ggml_tensor* dst, const AttentionStep& step, int64_t chunks, int thread,
                             int threads) {
    const int64_t rows = step.tokens * step.heads;
    for (int64_t row = rows * thread / threads; row < rows * (thread + 1) / threads; ++row) {
        const int64_t token = row / step.heads, head = row % step.heads;
        const TokenSoftmax total = token_softmax(step, token, head, chunks);
        float* out = head_of(dst, token, head, head_dim_);
        std::fill(out, out + head_dim_, 0.0F);
        for (int64_t c = 0; c < chunks; ++c) {
            const float* part = partial_result(step, c, token, head);
            const float weight = std::exp2(part[0] - total.maximum) / total.sum;
            for (int64_t i = 0; i < head_dim_; ++i) out[i] += weight * part[kStats + i];
        }
    }
}

AttentionStep Attention::step_of(const ggml_tensor* seen, int64_t heads, int64_t kv_heads,
                                 const Node& node) const {
    const std::vector<float>& slopes = node.slopes.empty() ? slopes_ : node.slopes;
    return {seen->ne[1],
            heads,
            kv_heads,
            node.window,
            static_cast<const int32_t*>(seen->data),
            slopes.empty() ? nullptr : slopes.data(),
            node.sinks.empty() ? nullptr : node.sinks.data(),
            nullptr};
}

void Attention::compute_attention(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *queries = dst->src[0], *keys = dst->src[1], *values = dst->src[2];
    const AttentionStep step = step_of(dst->src[3], dst->ne[0] / head_dim_, keys->ne[2], node);
    const attention::ScoreRules rules(node.scale, rules_.softcap);
    const int64_t chunks = chunk_count(step, most_threads());
    if (chunks == 1) {
        work_.for_each(step, thread, threads, [&](const AttentionWorkItem& item) {
            if (!item.single_token) return prefill_.attend(dst, step, rules, item, thread);
            for_whole_token(step, item, thread, [&](const TokenChunk& chunk) {
                const ChunkSoftmax softmax = score_whole(step, chunk, queries, keys, rules);
                float* out = head_of(dst, chunk.token, chunk.head, head_dim_);
                weigh_values(step, chunk, values, out, head_dim_);
                for (int64_t h = 0; h < chunk.heads; ++h, out += head_dim_)
                    attention::scale({out, false}, head_dim_, 1.0F / softmax.sums[h], {out, false});
            });
        });
        return;
    }
    for_chunks(step, chunks, thread, threads, [&](const TokenChunk& chunk) {
        const ChunkSoftmax softmax = score(step, chunk, queries, keys, rules);
        float* out = partial_result(step, chunk.index, chunk.token, chunk.head);
        softmax.store(out, chunk.heads, kStats + head_dim_);
        weigh_values(step, chunk, values, out + kStats, kStats + head_dim_);
    });
    barrier_.arrive_and_wait(threads);
    merge_chunks(dst, step, chunks, thread, threads);
}

void Attention::compute_probabilities(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *queries = dst->src[0], *keys = dst->src[1];
    const AttentionStep step = step_of(dst->src[2], dst->ne[2], keys->ne[2], node);
    const attention::ScoreRules rules(node.scale, rules_.softcap);
    const auto write = [&](const TokenChunk& chunk, int64_t h, float factor) {
        attention::scale({chunk.weights + h * chunk.stride, false}, chunk.rows.count(), factor,
                         probabilities_of(dst, chunk.token, chunk.head + h, chunk.rows.begin));
    };
    const int64_t chunks = chunk_count(step, most_threads());
    if (chunks == 1) {
        work_.for_each(step, thread, threads, [&](const AttentionWorkItem& item) {
            if (!item.single_token) return prefill_.probabilities(dst, step, rules, item, thread);
            for_whole_token(step, item, thread, [&](const TokenChunk& chunk) {
                const ChunkSoftmax softmax = score_whole(step, chunk, queries, keys, rules);
                for (int64_t h = 0; h < chunk.heads; ++h) write(chunk, h, 1.0F / softmax.sums[h]);
            });
        });
        return;
    }
    for_chunks(step, chunks, thread, threads, [&](const TokenChunk& chunk) {
        score(step, chunk, queries, keys, rules)
            .store(partial_result(step, chunk.index, chunk.token, chunk.head), chunk.heads,
                   kStats + head_dim_);
        for (int64_t h = 0; h < chunk.heads; ++h) write(chunk, h, 1.0F);
    });
    barrier_.arrive_and_wait(threads);
    for_chunks(step, chunks, thread, threads, [&](const TokenChunk& chunk) {
        for (int64_t head = chunk.head; head < chunk.head + chunk.heads; ++head) {
            const TokenSoftmax total = token_softmax(step, chunk.token, head, chunks);
            const float own = partial_result(step, chunk.index, chunk.token, head)[0];
            const auto numbers = probabilities_of(dst, chunk.token, head, chunk.rows.begin);
            attention::scale(numbers, chunk.rows.count(), std::exp2(own - total.maximum) / total.sum,
                             numbers);
        }
    });
}

void Attention::compute_applied(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *probabilities = dst->src[0], *values = dst->src[1], *selected = dst->src[3];
    AttentionStep step = step_of(dst->src[2], probabilities->ne[2], values->ne[2], node);
    if (selected != nullptr) step.selected = static_cast<const int32_t*>(selected->data);
    const auto read = [&](const TokenChunk& chunk) {
        for (int64_t h = 0; h < chunk.heads; ++h) {
            attention::scale(probabilities_of(probabilities, step.source_token(chunk.token), chunk.head + h,
                                              chunk.rows.begin),
                             chunk.rows.count(), 1.0F, {chunk.weights + h * chunk.stride, false});
        }
    };
    const int64_t chunks = chunk_count(step, most_threads());
    if (chunks == 1) {
        work_.for_each(step, thread, threads, [&](const AttentionWorkItem& item) {
            if (!item.single_token) return prefill_.apply(dst, step, item, thread);
            for_whole_token(step, item, thread, [&](const TokenChunk& chunk) {
                read(chunk);
                weigh_values(step, chunk, values, head_of(dst, chunk.token, chunk.head, head_dim_),
                             head_dim_);
            });
        });
        return;
    }
    for_chunks(step, chunks, thread, threads, [&](const TokenChunk& chunk) {
        read(chunk);
        // The probabilities are normalized: over all chunks the sums must add up to 1.
        ChunkSoftmax given;
        std::fill(given.sums, given.sums + chunk.heads, chunk.index == 0 ? 1.0F : 0.0F);
        float* out = partial_result(step, chunk.index, chunk.token, chunk.head);
        given.store(out, chunk.heads, kStats + head_dim_);
        weigh_values(step, chunk, values, out + kStats, kStats + head_dim_);
    });
    barrier_.arrive_and_wait(threads);
    merge_chunks(dst, step, chunks, thread, threads);
}

void Attention::compute_column_sums(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor* probabilities = dst->src[0];
    const int64_t longest = dst->ne[0];
    const AttentionStep step = step_of(dst->src[1], probabilities->ne[2], dst->ne[1], node);
    const int64_t blocks = (longest + kColumnRows - 1) / kColumnRows;
    for (int64_t i = thread; i < blocks * step.kv_heads; i += threads) {
        const int64_t kv_head = i / blocks, first = i % blocks * kColumnRows,
                      last = std::min(first + kColumnRows, longest);
        float* sums = head_of(dst, kv_head, 0, 0) + first;
        std::fill(sums, sums + (last - first), 0.0F);
        for (int64_t token = 0; token < step.tokens; ++token) {
            const RowRange seen = step.visible(token);
            const int64_t begin = std::max(first, seen.begin), end = std::min(last, seen.end);
            if (begin >= end) continue;
            for (int64_t head = kv_head * step.group(); head < (kv_head + 1) * step.group(); ++head) {
                attention::add(probabilities_of(probabilities, token, head, begin), end - begin,
                               sums + (begin - first));
            }
        }
    }
}

}  // namespace refold
