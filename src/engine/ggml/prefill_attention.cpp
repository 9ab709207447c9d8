// Attention of one work item by tiles.
//
// In: queries F32 [token][head][head_dim]; cached rows F16 or F32 [row][head_dim] of one KV head. Out: F32
// [token][head][head_dim], or probabilities [head][token][row].
//
// Threads: an item (some tokens of one run, all query heads of one KV head) belongs to one thread; nothing is
// shared but the inputs.
//
// The query rows (token, head of the group), tokens outermost, are packed once per item. Tiles are the outer
// loop: each is read from the cache, widened and packed once, then meets all query rows of the item, whose
// maximum, sum and output are carried from tile to tile within a chunk, and merged after each chunk. Packing
// thus costs one pass over the cached rows per item, not per query.
#include "engine/ggml/prefill_attention.h"

#include <cmath>
#include <limits>

namespace refold {

using attention::kTileKeys;
using attention::kTileRows;
using attention::QueryRows;
using attention::RowRange;
using attention::Tile;

namespace {

// The rows that any token of the item sees.
RowRange seen_by(const AttentionStep& step, const AttentionWorkItem& item) {
    return {step.visible(item.first).begin, step.visible(item.last - 1).end};
}

// Calls tile(index, rows) for the tiles of a chunk up to the end of `rows`, which lie in it. Tiles begin
// where they do for all tokens of the sequence, even where no token of the item sees the first rows.
template <class Do>
void for_tiles(RowRange rows, Do tile) {
    for (int64_t first = rows.begin / kTileKeys * kTileKeys; first < rows.end; first += kTileKeys)
        tile(first / kTileKeys, RowRange{first, std::min(first + kTileKeys, rows.end)});
}

}  // namespace

void PrefillAttention::Rows::clear_chunk(float maximum) {
    const int64_t count = of_chunk.count;
    std::fill_n(of_chunk.chunk.maximum, count, maximum);
    std::fill_n(of_chunk.chunk.sum, count, 0.0F);
    std::fill_n(of_chunk.chunk.out, count * of_chunk.width, 0.0F);
}

void PrefillAttention::Rows::merge_chunk(bool out) const {
    attention::merge(of_chunk.count, out ? of_chunk.width : 0, of_chunk.chunk, total);
}

// Tokens are the outer order of rows, so that the rows of a block see nearly the same keys.
PrefillAttention::Rows PrefillAttention::rows_of(const AttentionStep& step, const AttentionWorkItem& item,
                                                 int64_t head_dim, Workspace& workspace) {
    const int64_t group = step.group(), used = (item.last - item.first) * group;
    QueryRows rows;
    rows.count = (used + kTileRows - 1) / kTileRows * kTileRows;
    rows.head_dim = head_dim;
    rows.width = attention::whole_vectors(head_dim);
    float* statistics = workspace.statistics.resize(4 * rows.count);
    const auto softmax_at = [&](float* at, float* out) {
        return attention::Softmax{at, at + rows.count, out, rows.width};
    };
    rows.chunk = softmax_at(statistics, workspace.out.resize(rows.count * rows.width));
    const attention::Softmax total =
        softmax_at(statistics + 2 * rows.count, workspace.total.resize(rows.count * rows.width));
    std::fill_n(total.maximum, rows.count, -std::numeric_limits<float>::infinity());
    std::fill_n(total.sum, rows.count, 0.0F);
    std::fill_n(total.out, rows.count * rows.width, 0.0F);
    workspace.visible.assign(static_cast<size_t>(rows.count), RowRange{});
    float* slopes = step.slopes == nullptr ? nullptr : workspace.slopes.resize(rows.count);
    for (int64_t row = 0; row < used; ++row) {
        workspace.visible[static_cast<size_t>(row)] = step.visible(item.first + row / group);
        if (step.sinks != nullptr) {  // as if the row had met it before its first key
            total.maximum[row] = step.sinks[item.kv_head * group + row % group];
            total.sum[row] = 1.0F;
        }
        if (slopes != nullptr) slopes[row] = step.slopes[item.kv_head * group + row % group];
    }
    rows.visible = workspace.visible.data();
    rows.slopes = slopes;
    return {rows, total};
}

namespace {

// Calls row(index, token, query head) for the query rows of an item.
template <class Do>
void for_rows(const AttentionStep& step, const AttentionWorkItem& item, Do row) {
    int64_t index = 0;
    for (int64_t token = item.first; token < item.last; ++token) {
        for (int64_t h = 0; h < step.group(); ++h) row(index++, token, item.kv_head * step.group() + h);
    }
}

// Packs queries as [block][head_dim][kTileRows], times rules.factor.
void pack_queries(const AttentionStep& step, const AttentionWorkItem& item, const ggml_tensor* queries,
                  const attention::ScoreRules& rules, QueryRows& rows, float* packed) {
    std::fill_n(packed + (rows.count - kTileRows) * rows.head_dim, kTileRows * rows.head_dim, 0.0F);
    for_rows(step, item, [&](int64_t row, int64_t token, int64_t head) {
        const float* from = head_of(queries, token, head, rows.head_dim);
        float* to = packed + row / kTileRows * kTileRows * rows.head_dim + row % kTileRows;
        for (int64_t c = 0; c < rows.head_dim; ++c) to[c * kTileRows] = from[c] * rules.factor;
    });
    rows.queries = packed;
    rows.cap = rules.cap;
}

// Writes the sums of the values to `dst`, divided by those of the weights if `normalize`.
void write(const AttentionStep& step, const AttentionWorkItem& item, const attention::Softmax& total,
           bool normalize, int64_t head_dim, ggml_tensor* dst) {
    for_rows(step, item, [&](int64_t row, int64_t token, int64_t head) {
        attention::scale({total.out + row * total.stride, false}, head_dim,
                         normalize ? 1.0F / total.sum[row] : 1.0F,
                         {head_of(dst, token, head, head_dim), false});
    });
}

}  // namespace

void PrefillAttention::attend(ggml_tensor* dst, const AttentionStep& step, const attention::ScoreRules& rules,
                              const AttentionWorkItem& item, int thread) {
    const ggml_tensor *queries = dst->src[0], *keys = dst->src[1], *values = dst->src[2];
    Workspace& workspace = workspaces_[static_cast<size_t>(thread)];
    const int64_t first = step.first_row(item.first);
    Rows all = rows_of(step, item, keys->ne[0], workspace);
    QueryRows& rows = all.of_chunk;
    pack_queries(step, item, queries, rules, rows, workspace.queries.resize(rows.count * rows.head_dim));
    float* k = workspace.keys.resize(kTileKeys * rows.head_dim);
    float* v = workspace.values.resize(kTileKeys * rows.width);
    for_chunks(seen_by(step, item), [&](int64_t, RowRange chunk) {
        all.clear_chunk(-std::numeric_limits<float>::infinity());
        for_tiles(chunk, [&](int64_t, RowRange tile) {
            attention::pack_keys(cached_rows(keys, item.kv_head, first, tile), k);
            attention::pack_values(cached_rows(values, item.kv_head, first, tile), rows.width, v);
            attention::attend_tile(rows, Tile{tile.begin, tile.end - tile.begin, k, v});
        });
        all.merge_chunk(true);
    });
    write(step, item, all.total, true, rows.head_dim, dst);
}

// Weights are written relative to the largest score of their chunk so far. When all tiles are done, they are
// rescaled to the largest score of their row and normalized.
void PrefillAttention::probabilities(ggml_tensor* dst, const AttentionStep& step,
                                     const attention::ScoreRules& rules, const AttentionWorkItem& item,
                                     int thread) {
    const ggml_tensor *queries = dst->src[0], *keys = dst->src[1];
    const bool half = dst->type == GGML_TYPE_F16;
    Workspace& workspace = workspaces_[static_cast<size_t>(thread)];
    const int64_t first = step.first_row(item.first);
    Rows all = rows_of(step, item, keys->ne[0], workspace);
    QueryRows& rows = all.of_chunk;
    pack_queries(step, item, queries, rules, rows, workspace.queries.resize(rows.count * rows.head_dim));
    auto& to = workspace.probabilities;
    to.assign(static_cast<size_t>(rows.count), nullptr);
    for_rows(step, item, [&](int64_t row, int64_t token, int64_t head) {
        to[static_cast<size_t>(row)] = probabilities_of(dst, token, head, 0).data;
    });
    const RowRange seen = seen_by(step, item);
    const int64_t first_tile = seen.begin / kTileKeys, tiles = (seen.end - 1) / kTileKeys + 1 - first_tile;
    float* maxima = workspace.tile_maximum.resize(tiles * rows.count);
    const auto maxima_of = [&](int64_t tile) { return maxima + (tile - first_tile) * rows.count; };
    float* k = workspace.keys.resize(kTileKeys * rows.head_dim);
    for_chunks(seen, [&](int64_t, RowRange chunk) {
        all.clear_chunk(-std::numeric_limits<float>::infinity());
        for_tiles(chunk, [&](int64_t index, RowRange tile) {
            attention::pack_keys(cached_rows(keys, item.kv_head, first, tile), k);
            attention::score_tile(rows, Tile{tile.begin, tile.end - tile.begin, k, nullptr}, to.data(), half,
                                  maxima_of(index));
        });
        all.merge_chunk(false);
    });
    for_rows(step, item, [&](int64_t row, int64_t token, int64_t head) {
        const RowRange own = rows.visible[row];
        for_tiles(own, [&](int64_t index, RowRange tile) {
            const int64_t begin = std::max(tile.begin, own.begin);
            const attention::FloatArray numbers = probabilities_of(dst, token, head, begin);
            attention::scale(
                numbers, tile.end - begin,
                to_probabilities(maxima_of(index)[row], all.total.maximum[row], all.total.sum[row]), numbers);
        });
    });
}

void PrefillAttention::apply(ggml_tensor* dst, const AttentionStep& step, const AttentionWorkItem& item,
                             int thread) {
    const ggml_tensor *probabilities = dst->src[0], *values = dst->src[1];
    Workspace& workspace = workspaces_[static_cast<size_t>(thread)];
    Rows all = rows_of(step, item, values->ne[0], workspace);
    const QueryRows& rows = all.of_chunk;
    // Probabilities are weights relative to the same number everywhere.
    std::fill_n(all.total.maximum, rows.count, 0.0F);
    auto& from = workspace.probabilities;
    from.assign(static_cast<size_t>(rows.count), nullptr);
    for_rows(step, item, [&](int64_t row, int64_t token, int64_t head) {
        from[static_cast<size_t>(row)] =
            probabilities_of(probabilities, step.source_token(token), head, 0).data;
    });
    float* v = workspace.values.resize(kTileKeys * rows.width);
    for_chunks(seen_by(step, item), [&](int64_t, RowRange chunk) {
        all.clear_chunk(0.0F);
        for_tiles(chunk, [&](int64_t, RowRange tile) {
            attention::pack_values(cached_rows(values, item.kv_head, step.first_row(item.first), tile),
                                   rows.width, v);
            attention::apply_tile(rows, Tile{tile.begin, tile.end - tile.begin, nullptr, v}, from.data(),
                                  probabilities->type == GGML_TYPE_F16);
        });
        all.merge_chunk(true);
    });
    write(step, item, all.total, false, rows.head_dim, dst);
}

}  // namespace refold
