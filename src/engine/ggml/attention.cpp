#include "engine/ggml/attention.h"

#include <cmath>
#include <limits>
#include <thread>

namespace refold {
namespace {

using attention::kTogether;
using attention::RowRange;

// Fewer cached rows than this are not worth splitting between threads.
constexpr int64_t kMinChunk = 32;

// As ggml's soft_max_ext and flash_attn_ext derive them, times log2(e).
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

// Numbers before the weighted values of a partial result: the largest score and the sum of the weights.
constexpr int64_t kSums = 2;
// Cached rows whose column sums one thread takes at a time.
constexpr int64_t kColumnRows = 2048;

}  // namespace

Attention::Attention(int64_t n_head, int64_t head_dim, AttentionRules rules, int64_t cached, int threads)
    : head_dim_(head_dim),
      rules_(rules),
      slopes_(alibi_slopes(n_head, rules.max_alibi)),
      partial_(static_cast<size_t>(threads * kFewTokens * n_head * (2 + head_dim))),
      weights_(static_cast<size_t>(threads),
               std::vector<float>(static_cast<size_t>(kTogether * attention::whole_vectors(cached)))),
      prefill_(threads) {}

Attention::Node* Attention::node_of(float scale, int64_t window) {
    return &nodes_.try_emplace({scale, window}, Node{this, scale, window}).first->second;
}

ggml_tensor* Attention::node(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys,
                             ggml_tensor* values, ggml_tensor* positions, float scale, int64_t window) {
    ggml_tensor* arguments[] = {queries, keys, values, positions};
    return ggml_custom_4d(context, GGML_TYPE_F32, queries->ne[0], queries->ne[1], 1, 1, arguments, 4,
                          compute<&Attention::compute_attention>, GGML_N_TASKS_MAX, node_of(scale, window));
}

ggml_tensor* Attention::probabilities(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys,
                                      ggml_tensor* positions, float scale, int64_t window, ggml_type type) {
    ggml_tensor* arguments[] = {queries, keys, positions};
    return ggml_custom_4d(context, type, keys->ne[1], queries->ne[1], queries->ne[0] / head_dim_, 1,
                          arguments, 3, compute<&Attention::compute_probabilities>, GGML_N_TASKS_MAX,
                          node_of(scale, window));
}

ggml_tensor* Attention::apply(ggml_context* context, ggml_tensor* probabilities, ggml_tensor* values,
                              ggml_tensor* positions, int64_t window) {
    ggml_tensor* arguments[] = {probabilities, values, positions};
    return ggml_custom_4d(context, GGML_TYPE_F32, probabilities->ne[2] * head_dim_, probabilities->ne[1], 1,
                          1, arguments, 3, compute<&Attention::compute_applied>, GGML_N_TASKS_MAX,
                          node_of(0.0F, window));
}

ggml_tensor* Attention::column_sums(ggml_context* context, ggml_tensor* probabilities, ggml_tensor* positions,
                                    int64_t window, int64_t kv_heads) {
    ggml_tensor* arguments[] = {probabilities, positions};
    return ggml_custom_4d(context, GGML_TYPE_F32, probabilities->ne[0], kv_heads, 1, 1, arguments, 2,
                          compute<&Attention::compute_column_sums>, GGML_N_TASKS_MAX, node_of(0.0F, window));
}

void Attention::wait(int threads) {
    const int generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
        arrived_.store(0, std::memory_order_relaxed);
        generation_.store(generation + 1, std::memory_order_release);
        return;
    }
    // Threads arrive within microseconds, unless the machine is shared.
    for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; ++spins) {
        if (spins > 10000) std::this_thread::yield();
    }
}

// One token and up to kTogether query heads that share a key/value head, over one chunk of the rows seen.
struct Attention::Piece {
    int64_t token, kv_head, head, heads;
    int64_t chunk, chunks;
    RowRange rows;
    float* weights;  // [heads][stride]
    int64_t stride;
};

namespace {

// Whole heads per thread where they divide evenly, else every head's rows are cut into one chunk per thread.
int64_t chunks_of(const AttentionStep& step, int threads) {
    const RowRange seen = step.visible(0);
    const bool even = step.tokens * step.kv_heads % threads == 0;
    return !even && seen.end - seen.begin > kMinChunk * threads ? threads : 1;
}

}  // namespace

template <class Do>
void Attention::for_pieces(const AttentionStep& step, int thread, int threads, Do piece) {
    const int64_t chunks = chunks_of(step, threads), units = step.tokens * step.kv_heads * chunks;
    for (int64_t unit = thread; unit < units; unit += threads) {
        Piece p{};
        p.chunk = unit % chunks;
        p.chunks = chunks;
        p.kv_head = unit / chunks % step.kv_heads;
        p.token = unit / chunks / step.kv_heads;
        const RowRange seen = step.visible(p.token);
        const int64_t count = seen.end - seen.begin;
        p.rows = {seen.begin + count * p.chunk / chunks, seen.begin + count * (p.chunk + 1) / chunks};
        p.weights = weights_[static_cast<size_t>(thread)].data();
        p.stride = attention::whole_vectors(p.rows.end - p.rows.begin);
        const int64_t first = p.kv_head * step.group(), last = first + step.group();
        for (p.head = first; p.head < last; p.head += p.heads) {
            p.heads = std::min(kTogether, last - p.head);
            piece(p);
        }
    }
}

float* Attention::partial(const AttentionStep& step, int64_t chunk, int64_t token, int64_t head) {
    return partial_.data() + ((chunk * step.tokens + token) * step.heads + head) * (kSums + head_dim_);
}

// Weights of a piece, relative to its own largest score; returns where that and their sums are.
float* Attention::score(const AttentionStep& step, const Piece& piece, const ggml_tensor* queries,
                        const ggml_tensor* keys, const attention::ScoreRules& rules) {
    float maxima[kTogether], sums[kTogether];
    const attention::FewQueries few{head_of(queries, piece.token, piece.head, head_dim_), piece.heads,
                                    step.slopes == nullptr ? nullptr : step.slopes + piece.head,
                                    step.positions[piece.token] - piece.rows.begin};
    attention::score_few(cached_rows(keys, piece.kv_head, piece.rows), few, rules, piece.weights,
                         piece.stride, maxima, sums);
    float* out = partial(step, piece.chunk, piece.token, piece.head);
    for (int64_t h = 0; h < piece.heads; ++h) {
        out[h * (kSums + head_dim_)] = maxima[h];
        out[h * (kSums + head_dim_) + 1] = sums[h];
    }
    return out;
}

// Of all chunks.
Attention::Total Attention::total_of(const AttentionStep& step, int64_t token, int64_t head, int64_t chunks) {
    Total total{-std::numeric_limits<float>::infinity(), 0};
    for (int64_t c = 0; c < chunks; ++c)
        total.maximum = std::max(total.maximum, partial(step, c, token, head)[0]);
    for (int64_t c = 0; c < chunks; ++c) {
        const float* part = partial(step, c, token, head);
        total.sum += part[1] * std::exp2(part[0] - total.maximum);
    }
    return total;
}

void Attention::merge(ggml_tensor* dst, const AttentionStep& step, int thread, int threads) {
    const int64_t rows = step.tokens * step.heads, chunks = chunks_of(step, threads);
    for (int64_t row = rows * thread / threads; row < rows * (thread + 1) / threads; ++row) {
        const int64_t token = row / step.heads, head = row % step.heads;
        const Total total = total_of(step, token, head, chunks);
        float* out = head_of(dst, token, head, head_dim_);
        std::fill(out, out + head_dim_, 0.0F);
        for (int64_t c = 0; c < chunks; ++c) {
            const float* part = partial(step, c, token, head);
            const float weight = std::exp2(part[0] - total.maximum) / total.sum;
            for (int64_t i = 0; i < head_dim_; ++i) out[i] += weight * part[kSums + i];
        }
    }
}

AttentionStep Attention::step_of(int64_t tokens, int64_t heads, int64_t kv_heads,
                                 const ggml_tensor* positions, const Node& node) const {
    return {tokens,
            heads,
            kv_heads,
            node.window,
            static_cast<const int32_t*>(positions->data),
            slopes_.empty() ? nullptr : slopes_.data()};
}

void Attention::compute_attention(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *queries = dst->src[0], *keys = dst->src[1], *values = dst->src[2];
    const AttentionStep step = step_of(dst->ne[1], dst->ne[0] / head_dim_, keys->ne[2], dst->src[3], node);
    const attention::ScoreRules rules(node.scale, rules_.softcap);
    if (step.tokens > kFewTokens) return prefill_.attend(dst, step, rules, thread, threads);
    for_pieces(step, thread, threads, [&](const Piece& piece) {
        float* out = score(step, piece, queries, keys, rules);
        attention::weight_few(cached_rows(values, piece.kv_head, piece.rows), piece.heads, piece.weights,
                              piece.stride, out + kSums, kSums + head_dim_);
    });
    wait(threads);
    merge(dst, step, thread, threads);
}

void Attention::compute_probabilities(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *queries = dst->src[0], *keys = dst->src[1];
    const AttentionStep step = step_of(dst->ne[1], dst->ne[2], keys->ne[2], dst->src[2], node);
    const attention::ScoreRules rules(node.scale, rules_.softcap);
    if (step.tokens > kFewTokens) return prefill_.probabilities(dst, step, rules, thread, threads);
    const bool whole = chunks_of(step, threads) == 1;
    for_pieces(step, thread, threads, [&](const Piece& piece) {
        const float* out = score(step, piece, queries, keys, rules);
        for (int64_t h = 0; h < piece.heads; ++h, out += kSums + head_dim_) {
            attention::scale({piece.weights + h * piece.stride, false}, piece.rows.count(),
                             whole ? 1.0F / out[1] : 1.0F,
                             probabilities_of(dst, piece.token, piece.head + h, piece.rows.begin));
        }
    });
    if (whole) return;
    wait(threads);
    for_pieces(step, thread, threads, [&](const Piece& piece) {
        for (int64_t head = piece.head; head < piece.head + piece.heads; ++head) {
            const Total total = total_of(step, piece.token, head, piece.chunks);
            const float own = partial(step, piece.chunk, piece.token, head)[0];
            const auto numbers = probabilities_of(dst, piece.token, head, piece.rows.begin);
            attention::scale(numbers, piece.rows.count(), std::exp2(own - total.maximum) / total.sum,
                             numbers);
        }
    });
}

void Attention::compute_applied(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *probabilities = dst->src[0], *values = dst->src[1];
    const AttentionStep step = step_of(dst->ne[1], probabilities->ne[2], values->ne[2], dst->src[2], node);
    if (step.tokens > kFewTokens) return prefill_.apply(dst, step, thread, threads);
    for_pieces(step, thread, threads, [&](const Piece& piece) {
        float* out = partial(step, piece.chunk, piece.token, piece.head);
        for (int64_t h = 0; h < piece.heads; ++h) {
            attention::scale(probabilities_of(probabilities, piece.token, piece.head + h, piece.rows.begin),
                             piece.rows.count(), 1.0F, {piece.weights + h * piece.stride, false});
            // The chunks' sums are 1 together.
            out[h * (kSums + head_dim_)] = 0;
            out[h * (kSums + head_dim_) + 1] = piece.chunk == 0 ? 1.0F : 0.0F;
        }
        attention::weight_few(cached_rows(values, piece.kv_head, piece.rows), piece.heads, piece.weights,
                              piece.stride, out + kSums, kSums + head_dim_);
    });
    wait(threads);
    merge(dst, step, thread, threads);
}

void Attention::compute_column_sums(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor* probabilities = dst->src[0];
    const int64_t cached = dst->ne[0];
    const AttentionStep step =
        step_of(probabilities->ne[1], probabilities->ne[2], dst->ne[1], dst->src[1], node);
    // Pieces of a column that stay in the first cache while all tokens are added.
    const int64_t pieces = (cached + kColumnRows - 1) / kColumnRows;
    for (int64_t i = thread; i < pieces * step.kv_heads; i += threads) {
        const int64_t kv_head = i / pieces, first = i % pieces * kColumnRows,
                      last = std::min(first + kColumnRows, cached);
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
