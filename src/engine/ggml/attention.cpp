// Attention of steps with few tokens per sequence, and the choice between it and tiles (prefill_attention.h).
//
// In: queries F32 [token][head][head_dim]; cached rows F16 or F32 [row][head_dim] of one KV head.
// Out: F32 [token][head][head_dim], or probabilities [head][token][row].
//
// Threads: a unit, one (token, KV head) pair, is a work item. Where there are too few of them to occupy all
// threads, their chunks are (flash decoding): each thread writes maximum, sum of weights and weighted values
// of its chunks, and after a barrier the threads merge them, each for a share of the units. Otherwise threads
// take units from a queue and merge their chunks at once. The chunks are the same in both cases, and in tiles
// (kChunkRows): results do not depend on the choice.
//
// Loop order: for up to kHeadsPerPass query heads of the unit, first the scores of all rows of a chunk (keys
// stream from memory once), with softmax, then the weighted sum (values stream once). The scores between them
// stay in the thread's buffer, which the L1 cache holds.
#include "engine/ggml/attention.h"

#include <cmath>
#include <limits>
#include <span>

#include "engine/ggml/thread_share.h"

namespace refold {
namespace {

using attention::kChunkRows;
using attention::kChunkTiles;
using attention::kHeadsPerPass;
using attention::RowRange;

// With this many units per thread, taking whole ones balances well enough.
constexpr int64_t kEnoughItems = 4;

// Most chunks that so many adjacent rows lie in.
int64_t most_chunks(int64_t rows) { return (rows + kChunkRows - 2) / kChunkRows + 1; }

// Cached rows per work item of column_sums: their sums stay in the L1 cache while all tokens are added.
constexpr int64_t kColumnRows = 2048;

}  // namespace

std::vector<float> alibi_slopes(int64_t n_head, float max_bias) {
    std::vector<float> slopes;
    if (max_bias <= 0) return slopes;
    const auto whole = int64_t{1} << static_cast<int>(std::floor(std::log2(static_cast<double>(n_head))));
    const double first = std::pow(2.0, -static_cast<double>(max_bias) / static_cast<double>(whole)),
                 second = std::sqrt(first);
    for (int64_t h = 0; h < n_head; ++h) {
        const double slope = h < whole ? std::pow(first, h + 1) : std::pow(second, 2 * (h - whole) + 1);
        slopes.push_back(static_cast<float>(slope));
    }
    return slopes;
}

Attention::Attention(int64_t n_head, int64_t head_dim, AttentionRules rules, int64_t longest, int threads)
    : head_dim_(head_dim),
      rules_(rules),
      slopes_(alibi_slopes(n_head, rules.max_alibi)),
      threads_(static_cast<size_t>(threads)),
      longest_(longest),
      placement_(threads),
      work_(threads),
      prefill_(threads) {
    for (float& slope : slopes_) slope *= attention::kLog2E;
    for (ThreadScratch& own : threads_) own.queries.resize(static_cast<size_t>(kHeadsPerPass * head_dim));
}

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
    make_room(queries->ne[1], queries->ne[0] / head_dim_, keys);
    ggml_tensor* arguments[] = {queries, keys, values, seen};
    return ggml_custom_4d(context, GGML_TYPE_F32, queries->ne[0], queries->ne[1], 1, 1, arguments, 4,
                          compute<&Attention::compute_attention>, GGML_N_TASKS_MAX,
                          node_of(scale, window, heads));
}

ggml_tensor* Attention::probabilities(ggml_context* context, ggml_tensor* queries, ggml_tensor* keys,
                                      ggml_tensor* seen, float scale, int64_t window, int64_t longest,
                                      ggml_type type, const AttentionHeads& heads) {
    make_room(queries->ne[1], queries->ne[0] / head_dim_, keys);
    ggml_tensor* arguments[] = {queries, keys, seen};
    return ggml_custom_4d(context, type, longest, queries->ne[1], queries->ne[0] / head_dim_, 1, arguments, 3,
                          compute<&Attention::compute_probabilities>, GGML_N_TASKS_MAX,
                          node_of(scale, window, heads));
}

ggml_tensor* Attention::apply(ggml_context* context, ggml_tensor* probabilities, ggml_tensor* values,
                              ggml_tensor* seen, int64_t window, ggml_tensor* selected) {
    make_room(seen->ne[1], probabilities->ne[2], values);
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

struct Attention::Unit {
    int64_t token, kv_head;
};

// The rows of a chunk that a unit's token sees.
struct Attention::UnitChunk {
    int64_t index;
    RowRange rows;
    int64_t first() const { return rows.begin - attention::chunk_rows(index).begin; }
};

Attention::UnitResult Attention::result_at(float* at, int64_t group) const {
    float* out = at + group * (2 + kChunkTiles);
    return {{at, at + group, out, result_stride()}, at + 2 * group};
}

bool Attention::cuts_into_chunks(const AttentionStep& step, int threads) const {
    const int64_t units = step.tokens * step.kv_heads;
    if (threads == 1 || units >= kEnoughItems * threads) return false;
    bool few = true;
    int64_t longest = 0;
    for_runs(step, [&](int64_t first, int64_t last) {
        few = few && last - first <= step.few;
        longest = std::max(longest, step.visible(last - 1).count());
    });
    return few && longest > kChunkRows;
}

void Attention::make_room(int64_t tokens, int64_t heads, const ggml_tensor* cache) {
    const int64_t units = tokens * cache->ne[2];
    if (units == 0 || units >= kEnoughItems * static_cast<int64_t>(threads_.size())) return;
    const auto size = static_cast<size_t>(units * most_chunks(std::min(longest_, cache->ne[1])) *
                                          result_floats(heads / cache->ne[2]));
    if (size <= chunk_results_size_) return;
    chunk_results_ = std::make_unique_for_overwrite<float[]>(size);
    chunk_results_size_ = size;
}

void Attention::begin_total(const AttentionStep& step, const Unit& unit, bool with_out,
                            const UnitResult& total) const {
    const int64_t group = step.group();
    if (step.sinks != nullptr) {  // as if the query had met them before its first key
        std::copy_n(step.sinks + unit.kv_head * group, group, total.softmax.maximum);
        std::fill_n(total.softmax.sum, group, 1.0F);
    } else {
        // Given probabilities are weights relative to the same number everywhere.
        std::fill_n(total.softmax.maximum, group,
                    step.given ? 0.0F : -std::numeric_limits<float>::infinity());
        std::fill_n(total.softmax.sum, group, 0.0F);
    }
    if (with_out) std::fill_n(total.softmax.out, group * total.softmax.stride, 0.0F);
}

template <class OfChunk, class OfUnit, class Tiles>
void Attention::for_units(const AttentionStep& step, bool with_out, int thread, int threads, OfChunk of_chunk,
                          OfUnit of_unit, Tiles tiles) {
    const int64_t group = step.group(), floats = result_floats(group), width = with_out ? result_stride() : 0;
    std::vector<float>& own = threads_[static_cast<size_t>(thread)].results;
    if (!cuts_into_chunks(step, threads)) {
        work_.for_each(step, thread, threads, [&](const AttentionWorkItem& item) {
            if (!item.single_token) return tiles(item);
            const Unit unit{item.first, item.kv_head};
            const RowRange seen = step.visible(unit.token);
            own.resize(static_cast<size_t>((1 + most_chunks(seen.count())) * floats));
            const UnitResult total = result_at(own.data(), group);
            begin_total(step, unit, with_out, total);
            float* at = own.data();
            for_chunks(seen, [&](int64_t index, RowRange rows) {
                const UnitResult result = result_at(at += floats, group);
                of_chunk(unit, UnitChunk{index, rows}, result);
                attention::merge(group, width, result.softmax, total.softmax);
            });
            of_unit(unit, own.data() + floats, total);
        });
        return;
    }
    // The chunks of unit u begin at u * stride.
    const int64_t units = step.tokens * step.kv_heads;
    const auto unit_of = [&](int64_t i) { return Unit{i / step.kv_heads, i % step.kv_heads}; };
    int64_t chunks = 0;  // of the longest
    for (int64_t t = 0; t < step.tokens; ++t) {
        const RowRange seen = step.visible(t);
        chunks = std::max(chunks, (seen.end - 1) / kChunkRows - seen.begin / kChunkRows + 1);
    }
    const auto results_of = [&](int64_t u) { return chunk_results_.get() + u * chunks * floats; };
    work_.take(units * chunks, threads, [&](int64_t i) {
        const Unit unit = unit_of(i / chunks);
        const RowRange seen = step.visible(unit.token);
        const int64_t index = seen.begin / kChunkRows + i % chunks;
        const RowRange all = attention::chunk_rows(index),
                       rows{std::max(seen.begin, all.begin), std::min(seen.end, all.end)};
        if (rows.begin >= rows.end) return;
        of_chunk(unit, UnitChunk{index, rows},
                 result_at(results_of(i / chunks) + i % chunks * floats, group));
    });
    barrier_.arrive_and_wait(threads);
    own.resize(static_cast<size_t>(floats));
    const UnitResult total = result_at(own.data(), group);
    const auto [first, last] = thread_share(units, thread, threads);
    for (int64_t u = first; u < last; ++u) {
        const Unit unit = unit_of(u);
        begin_total(step, unit, with_out, total);
        float* at = results_of(u);
        for_chunks(step.visible(unit.token), [&](int64_t, RowRange) {
            attention::merge(group, width, result_at(at, group).softmax, total.softmax);
            at += floats;
        });
        of_unit(unit, results_of(u), total);
    }
}

template <class Do>
void Attention::for_head_groups(const AttentionStep& step, const Unit& unit, Do visit) {
    const int64_t first = unit.kv_head * step.group(), last = first + step.group();
    for (int64_t head = first, heads = 0; head < last; head += heads) {
        heads = std::min(kHeadsPerPass, last - head);
        visit(head, heads);
    }
}

// Writes the weights of a chunk to the thread's buffer.
void Attention::score(const AttentionStep& step, const Unit& unit, const UnitChunk& chunk, int64_t head,
                      int64_t heads, const ggml_tensor* queries, const ggml_tensor* keys,
                      const attention::ScoreRules& rules, int thread) {
    ThreadScratch& own = threads_[static_cast<size_t>(thread)];
    attention::scale({head_of(queries, unit.token, head, head_dim_), false}, heads * head_dim_, rules.factor,
                     {own.queries.data(), false});
    const attention::FewQueries few{own.queries.data(), heads,
                                    step.slopes == nullptr ? nullptr : step.slopes + head,
                                    step.visible(unit.token).end - 1 - (chunk.rows.begin - chunk.first())};
    attention::score_few(cached_rows(keys, unit.kv_head, step.first_row(unit.token), chunk.rows),
                         chunk.first(), few, rules.cap, own.weights);
}

void Attention::weigh_values(const AttentionStep& step, const Unit& unit, const UnitChunk& chunk,
                             int64_t head, int64_t heads, const ggml_tensor* values, const UnitResult& result,
                             int thread) {
    attention::weight_few(cached_rows(values, unit.kv_head, step.first_row(unit.token), chunk.rows),
                          chunk.first(), heads, threads_[static_cast<size_t>(thread)].weights,
                          result.softmax.out + (head - unit.kv_head * step.group()) * result.softmax.stride,
                          result.softmax.stride);
}

AttentionStep Attention::step_of(const ggml_tensor* seen, int64_t heads, int64_t kv_heads, ggml_type cached,
                                 const Node& node) const {
    const std::vector<float>& slopes = node.slopes.empty() ? slopes_ : node.slopes;
    return {seen->ne[1],
            heads,
            kv_heads,
            node.window,
            few_tokens(cached),
            static_cast<const int32_t*>(seen->data),
            slopes.empty() ? nullptr : slopes.data(),
            node.sinks.empty() ? nullptr : node.sinks.data(),
            nullptr,
            false};
}

void Attention::compute_attention(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *queries = dst->src[0], *keys = dst->src[1], *values = dst->src[2];
    const AttentionStep step = step_of(dst->src[3], dst->ne[0] / head_dim_, keys->ne[2], keys->type, node);
    const attention::ScoreRules rules(node.scale, rules_.softcap);
    const int64_t group = step.group();
    const attention::ChunkWeights& weights = threads_[static_cast<size_t>(thread)].weights;
    for_units(
        step, true, thread, threads,
        [&](const Unit& unit, const UnitChunk& chunk, const UnitResult& result) {
            for_head_groups(step, unit, [&](int64_t head, int64_t heads) {
                score(step, unit, chunk, head, heads, queries, keys, rules, thread);
                weigh_values(step, unit, chunk, head, heads, values, result, thread);
                std::copy_n(weights.maximum, heads, result.softmax.maximum + head % group);
                std::copy_n(weights.sum, heads, result.softmax.sum + head % group);
            });
        },
        [&](const Unit& unit, const float*, const UnitResult& total) {
            for (int64_t h = 0; h < group; ++h) {
                attention::scale({total.softmax.out + h * total.softmax.stride, false}, head_dim_,
                                 1.0F / total.softmax.sum[h],
                                 {head_of(dst, unit.token, unit.kv_head * group + h, head_dim_), false});
            }
        },
        [&](const AttentionWorkItem& item) { prefill_.attend(dst, step, rules, item, thread); });
}

void Attention::compute_probabilities(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *queries = dst->src[0], *keys = dst->src[1];
    const AttentionStep step = step_of(dst->src[2], dst->ne[2], keys->ne[2], keys->type, node);
    const attention::ScoreRules rules(node.scale, rules_.softcap);
    const int64_t group = step.group();
    const attention::ChunkWeights& weights = threads_[static_cast<size_t>(thread)].weights;
    for_units(
        step, false, thread, threads,
        [&](const Unit& unit, const UnitChunk& chunk, const UnitResult& result) {
            for_head_groups(step, unit, [&](int64_t head, int64_t heads) {
                score(step, unit, chunk, head, heads, queries, keys, rules, thread);
                for (int64_t h = 0; h < heads; ++h) {
                    const int64_t own = head % group + h;
                    // Rounded as they are in tiles, before they are normalized.
                    attention::scale({const_cast<float*>(weights.weights[h]) + chunk.first(), false},
                                     chunk.rows.count(), 1.0F,
                                     probabilities_of(dst, unit.token, head + h, chunk.rows.begin));
                    result.softmax.maximum[own] = weights.maximum[h];
                    result.softmax.sum[own] = weights.sum[h];
                    for (int64_t t = 0; t < kChunkTiles; ++t)
                        result.tile_maximum[t * group + own] = weights.tile_maximum[h][t];
                }
            });
        },
        [&](const Unit& unit, float* results, const UnitResult& total) {
            for_chunks(step.visible(unit.token), [&](int64_t index, RowRange rows) {
                const float* maxima = result_at(results, group).tile_maximum;
                results += result_floats(group);
                const int64_t first = attention::chunk_rows(index).begin;
                for (int64_t t = 0; t < kChunkTiles; ++t) {
                    const int64_t begin = std::max(rows.begin, first + t * attention::kTileKeys),
                                  end = std::min(rows.end, first + (t + 1) * attention::kTileKeys);
                    for (int64_t h = 0; h < group && begin < end; ++h) {
                        const auto numbers =
                            probabilities_of(dst, unit.token, unit.kv_head * group + h, begin);
                        attention::scale(numbers, end - begin,
                                         to_probabilities(maxima[t * group + h], total.softmax.maximum[h],
                                                          total.softmax.sum[h]),
                                         numbers);
                    }
                }
            });
        },
        [&](const AttentionWorkItem& item) { prefill_.probabilities(dst, step, rules, item, thread); });
}

void Attention::compute_applied(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor *probabilities = dst->src[0], *values = dst->src[1], *selected = dst->src[3];
    AttentionStep step = step_of(dst->src[2], probabilities->ne[2], values->ne[2], values->type, node);
    step.given = true;
    if (selected != nullptr) step.selected = static_cast<const int32_t*>(selected->data);
    const int64_t group = step.group();
    attention::ChunkWeights& weights = threads_[static_cast<size_t>(thread)].weights;
    for_units(
        step, true, thread, threads,
        [&](const Unit& unit, const UnitChunk& chunk, const UnitResult& result) {
            for_head_groups(step, unit, [&](int64_t head, int64_t heads) {
                for (int64_t h = 0; h < heads; ++h) {
                    attention::scale(probabilities_of(probabilities, step.source_token(unit.token), head + h,
                                                      chunk.rows.begin),
                                     chunk.rows.count(), 1.0F, {weights.weights[h] + chunk.first(), false});
                    std::fill_n(weights.factor[h], kChunkTiles, 1.0F);
                    result.softmax.maximum[head % group + h] = result.softmax.sum[head % group + h] = 0;
                }
                weigh_values(step, unit, chunk, head, heads, values, result, thread);
            });
        },
        [&](const Unit& unit, const float*, const UnitResult& total) {
            for (int64_t h = 0; h < group; ++h)
                std::copy_n(total.softmax.out + h * total.softmax.stride, head_dim_,
                            head_of(dst, unit.token, unit.kv_head * group + h, head_dim_));
        },
        [&](const AttentionWorkItem& item) { prefill_.apply(dst, step, item, thread); });
}

void Attention::compute_column_sums(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const ggml_tensor* probabilities = dst->src[0];
    const int64_t longest = dst->ne[0];
    const AttentionStep step =
        step_of(dst->src[1], probabilities->ne[2], dst->ne[1], probabilities->type, node);
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
