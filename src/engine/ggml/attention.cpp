#include "engine/ggml/attention.h"

#include <cmath>
#include <limits>

namespace refold {
namespace {

using attention::kTogether;
using attention::RowRange;

constexpr int64_t kFewTokens = AttentionUnits::kFewTokens;
// Fewer cached rows than this are not worth splitting between threads.
constexpr int64_t kMinChunk = 32;
// From so many units per thread on the sequences are not split: taking unit by unit balances well enough.
constexpr int64_t kEnoughUnits = 4;

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

Attention::Attention(int64_t n_head, int64_t head_dim, AttentionRules rules, int64_t longest, int threads)
    : head_dim_(head_dim),
      rules_(rules),
      slopes_(alibi_slopes(n_head, rules.max_alibi)),
      partial_(static_cast<size_t>(threads * std::max(kFewTokens, 2 * kEnoughUnits) * n_head *
                                   (kSums + head_dim))),
      weights_(static_cast<size_t>(threads),
               std::vector<float>(static_cast<size_t>(kTogether * attention::whole_vectors(longest)))),
      units_(threads),
      prefill_(threads) {}

Attention::Node* Attention::node_of(float scale, int64_t window) {
    return &nodes_.try_emplace({scale, window}, Node{this, scale, window}).first->second;
}

ggml_tensor* Attention::node(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys,
                             ggml_tensor* values, ggml_tensor* seen, float scale, int64_t window) {
    ggml_tensor* arguments[] = {queries, keys, values, seen};
    return ggml_custom_4d(context, GGML_TYPE_F32, queries->ne[0], queries->ne[1], 1, 1, arguments, 4,
                          compute<&Attention::compute_attention>, GGML_N_TASKS_MAX, node_of(scale, window));
}

ggml_tensor* Attention::probabilities(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys,
                                      ggml_tensor* seen, float scale, int64_t window, int64_t longest,
                                      ggml_type type) {
    ggml_tensor* arguments[] = {queries, keys, seen};
    return ggml_custom_4d(context, type, longest, queries->ne[1], queries->ne[0] / head_dim_, 1, arguments, 3,
                          compute<&Attention::compute_probabilities>, GGML_N_TASKS_MAX,
                          node_of(scale, window));
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

// One token and up to kTogether query heads that share a key/value head, over one chunk of the rows seen.
struct Attention::Piece {
    int64_t token, kv_head;
    int64_t chunk, chunks;
    int64_t head, heads;
    RowRange rows;
    float* weights;  // [heads][stride]
    int64_t stride;
};

namespace {

// Into how many chunks the rows of every token are cut, for all threads to have work: 1 when tokens and heads
// are enough, or tiles need more than one token.
int64_t chunks_of(const AttentionStep& step, int threads) {
    const int64_t units = step.tokens * step.kv_heads;
    if (units >= kEnoughUnits * threads && step.tokens > kFewTokens) return 1;
    bool few = true;
    int64_t longest = 0;
    for_runs(step, [&](int64_t first, int64_t last) {
        few = few && last - first <= kFewTokens;
        longest = std::max(longest, step.visible(last - 1).count());
    });
    if (!few || units % threads == 0) return 1;
    const int64_t chunks = step.tokens <= kFewTokens ? threads : (kEnoughUnits * threads - 1) / units + 1;
    return longest > kMinChunk * chunks ? chunks : 1;
}

}  // namespace

template <class Do>
void Attention::for_heads(const AttentionStep& step, Piece p, int thread, Do part) {
    const RowRange seen = step.visible(p.token);
    p.rows = {seen.begin + seen.count() * p.chunk / p.chunks,
              seen.begin + seen.count() * (p.chunk + 1) / p.chunks};
    p.weights = weights_[static_cast<size_t>(thread)].data();
    p.stride = attention::whole_vectors(p.rows.count());
    const int64_t first = p.kv_head * step.group(), last = first + step.group();
    for (p.head = first; p.head < last; p.head += p.heads) {
        p.heads = std::min(kTogether, last - p.head);
        part(p);
    }
}

template <class Do>
void Attention::for_pieces(const AttentionStep& step, int64_t chunks, int thread, int threads, Do piece) {
    const int64_t units = step.tokens * step.kv_heads * chunks;
    for (int64_t unit = thread; unit < units; unit += threads) {
        Piece p{};
        p.chunk = unit % chunks;
        p.chunks = chunks;
        p.kv_head = unit / chunks % step.kv_heads;
        p.token = unit / chunks / step.kv_heads;
        for_heads(step, p, thread, piece);
    }
}

// All rows of a unit of few tokens.
template <class Do>
void Attention::for_whole(const AttentionStep& step, const AttentionUnit& unit, int thread, Do part) {
    Piece p{};
    p.chunks = 1;
    p.kv_head = unit.kv_head;
    p.token = unit.first;
    for_heads(step, p, thread, part);
}

float* Attention::partial(const AttentionStep& step, int64_t chunk, int64_t token, int64_t head) {
    return partial_.data() + ((chunk * step.tokens + token) * step.heads + head) * (kSums + head_dim_);
}

// Weights of a piece, relative to its own largest scores.
Attention::Scored Attention::score(const AttentionStep& step, const Piece& piece, const ggml_tensor* queries,
                                   const ggml_tensor* keys, const attention::ScoreRules& rules) const {
    Scored out;
    const attention::FewQueries few{head_of(queries, piece.token, piece.head, head_dim_), piece.heads,
                                    step.slopes == nullptr ? nullptr : step.slopes + piece.head,
                                    step.visible(piece.token).end - 1 - piece.rows.begin};
    attention::score_few(cached_rows(keys, piece.kv_head, step.first_row(piece.token), piece.rows), few,
                         rules, piece.weights, piece.stride, out.maxima, out.sums);
    return out;
}

void Attention::weigh(const AttentionStep& step, const Piece& piece, const ggml_tensor* values, float* out,
                      int64_t stride) const {
    attention::weight_few(cached_rows(values, piece.kv_head, step.first_row(piece.token), piece.rows),
                          piece.heads, piece.weights, piece.stride, out, stride);
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

void Attention::merge(ggml_tensor* dst, const AttentionStep& step, int64_t chunks, int thread, int threads) {
    const int64_t rows = step.tokens * step.heads;
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

AttentionStep Attention::step_of(const ggml_tensor* seen, int64_t heads, int64_t kv_heads,
                                 const Node& node) const {
    return {seen->ne[1],
            heads,
            kv_heads,
            node.window,
            static_cast<const int32_t*>(seen->data),
            slopes_.empty() ? nullptr : slopes_.data(),
            nullptr};
}

void Attention::compute_attention(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *queries = dst->src[0], *keys = dst->src[1], *values = dst->src[2];
    const AttentionStep step = step_of(dst->src[3], dst->ne[0] / head_dim_, keys->ne[2], node);
    const attention::ScoreRules rules(node.scale, rules_.softcap);
    const int64_t chunks = chunks_of(step, threads);
    if (chunks == 1) {
        units_.for_each(step, thread, threads, [&](const AttentionUnit& unit) {
            if (!unit.few) return prefill_.attend(dst, step, rules, unit, thread);
            for_whole(step, unit, thread, [&](const Piece& piece) {
                const Scored scored = score(step, piece, queries, keys, rules);
                float* out = head_of(dst, piece.token, piece.head, head_dim_);
                weigh(step, piece, values, out, head_dim_);
                for (int64_t h = 0; h < piece.heads; ++h, out += head_dim_)
                    attention::scale({out, false}, head_dim_, 1.0F / scored.sums[h], {out, false});
            });
        });
        return;
    }
    for_pieces(step, chunks, thread, threads, [&](const Piece& piece) {
        const Scored scored = score(step, piece, queries, keys, rules);
        float* out = partial(step, piece.chunk, piece.token, piece.head);
        scored.put(out, piece.heads, kSums + head_dim_);
        weigh(step, piece, values, out + kSums, kSums + head_dim_);
    });
    meeting_.wait(threads, [] {});
    merge(dst, step, chunks, thread, threads);
}

void Attention::compute_probabilities(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *queries = dst->src[0], *keys = dst->src[1];
    const AttentionStep step = step_of(dst->src[2], dst->ne[2], keys->ne[2], node);
    const attention::ScoreRules rules(node.scale, rules_.softcap);
    const auto write = [&](const Piece& piece, int64_t h, float factor) {
        attention::scale({piece.weights + h * piece.stride, false}, piece.rows.count(), factor,
                         probabilities_of(dst, piece.token, piece.head + h, piece.rows.begin));
    };
    const int64_t chunks = chunks_of(step, threads);
    if (chunks == 1) {
        units_.for_each(step, thread, threads, [&](const AttentionUnit& unit) {
            if (!unit.few) return prefill_.probabilities(dst, step, rules, unit, thread);
            for_whole(step, unit, thread, [&](const Piece& piece) {
                const Scored scored = score(step, piece, queries, keys, rules);
                for (int64_t h = 0; h < piece.heads; ++h) write(piece, h, 1.0F / scored.sums[h]);
            });
        });
        return;
    }
    for_pieces(step, chunks, thread, threads, [&](const Piece& piece) {
        score(step, piece, queries, keys, rules)
            .put(partial(step, piece.chunk, piece.token, piece.head), piece.heads, kSums + head_dim_);
        for (int64_t h = 0; h < piece.heads; ++h) write(piece, h, 1.0F);
    });
    meeting_.wait(threads, [] {});
    for_pieces(step, chunks, thread, threads, [&](const Piece& piece) {
        for (int64_t head = piece.head; head < piece.head + piece.heads; ++head) {
            const Total total = total_of(step, piece.token, head, chunks);
            const float own = partial(step, piece.chunk, piece.token, head)[0];
            const auto numbers = probabilities_of(dst, piece.token, head, piece.rows.begin);
            attention::scale(numbers, piece.rows.count(), std::exp2(own - total.maximum) / total.sum,
                             numbers);
        }
    });
}

void Attention::compute_applied(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *probabilities = dst->src[0], *values = dst->src[1], *selected = dst->src[3];
    AttentionStep step = step_of(dst->src[2], probabilities->ne[2], values->ne[2], node);
    if (selected != nullptr) step.selected = static_cast<const int32_t*>(selected->data);
    const auto read = [&](const Piece& piece) {
        for (int64_t h = 0; h < piece.heads; ++h) {
            attention::scale(
                probabilities_of(probabilities, step.given(piece.token), piece.head + h, piece.rows.begin),
                piece.rows.count(), 1.0F, {piece.weights + h * piece.stride, false});
        }
    };
    const int64_t chunks = chunks_of(step, threads);
    if (chunks == 1) {
        units_.for_each(step, thread, threads, [&](const AttentionUnit& unit) {
            if (!unit.few) return prefill_.apply(dst, step, unit, thread);
            for_whole(step, unit, thread, [&](const Piece& piece) {
                read(piece);
                weigh(step, piece, values, head_of(dst, piece.token, piece.head, head_dim_), head_dim_);
            });
        });
        return;
    }
    for_pieces(step, chunks, thread, threads, [&](const Piece& piece) {
        read(piece);
        // The chunks' sums are 1 together.
        Scored given;
        std::fill(given.sums, given.sums + piece.heads, piece.chunk == 0 ? 1.0F : 0.0F);
        float* out = partial(step, piece.chunk, piece.token, piece.head);
        given.put(out, piece.heads, kSums + head_dim_);
        weigh(step, piece, values, out + kSums, kSums + head_dim_);
    });
    meeting_.wait(threads, [] {});
    merge(dst, step, chunks, thread, threads);
}

void Attention::compute_column_sums(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor* probabilities = dst->src[0];
    const int64_t longest = dst->ne[0];
    const AttentionStep step = step_of(dst->src[1], probabilities->ne[2], dst->ne[1], node);
    // Pieces of a column that stay in the first cache while all tokens are added.
    const int64_t pieces = (longest + kColumnRows - 1) / kColumnRows;
    for (int64_t i = thread; i < pieces * step.kv_heads; i += threads) {
        const int64_t kv_head = i / pieces, first = i % pieces * kColumnRows,
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
