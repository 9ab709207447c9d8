#include "engine/ggml/kept_rows.h"

#include <ggml-backend.h>

#include <algorithm>
#include <cstring>

#include "model/cache_groups.h"

namespace refold {
namespace {

// Moves the rows kept of one head to the front, run by run.
void compact(const ggml_tensor* cache, char* rows, std::span<const int64_t> kept) {
    for (size_t first = 0, last = 0; first < kept.size(); first = last) {
        for (last = first + 1; last < kept.size() && kept[last] == kept[last - 1] + 1;) ++last;
        if (kept[first] == static_cast<int64_t>(first)) continue;
        std::memmove(rows + first * cache->nb[1], rows + static_cast<size_t>(kept[first]) * cache->nb[1],
                     (last - first) * cache->nb[1]);
    }
}

void compact(ggml_tensor* cache, int64_t head, std::span<const int64_t> kept) {
    const size_t first = static_cast<size_t>(head) * cache->nb[2];
    if (cache->buffer == nullptr || ggml_backend_buffer_is_host(cache->buffer))
        return compact(cache, static_cast<char*>(cache->data) + first, kept);
    // Of another device.
    std::vector<char> rows((static_cast<size_t>(kept.back()) + 1) * cache->nb[1]);
    ggml_backend_tensor_get(cache, rows.data(), first, rows.size());
    compact(cache, rows.data(), kept);
    ggml_backend_tensor_set(cache, rows.data(), first, kept.size() * cache->nb[1]);
}

}  // namespace

EvictionPlan::EvictionPlan(const Model& model, const EvictionOptions& o, int64_t context) : options(o) {
    if (!options.active()) return;
    rows = options.rows(context);
    for (size_t p = 0; p < model.topology.layers.size(); ++p) evicts.push_back(evictable(model, p));
}

KeptRows::KeptRows(const EvictionPlan& plan, const Model& model) : plan_(plan) {
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        const size_t keys = group_of_.emplace_back(key_layer(model.topology, p));
        if (!plan_.at(p)) continue;
        Group& group = groups_[keys];
        group.kv_heads = model.config.n_head_kv_of(p);
        if (!model.topology.source(p).kv) group.caches.push_back(p);
    }
    if (plan_.options.policy != KvPolicy::h2o) return;
    for (auto& [keys, group] : groups_) group.scores.resize(static_cast<size_t>(group.kv_heads * plan_.rows));
}

void KeptRows::clear() {
    used_ = 0;
    for (auto& [keys, group] : groups_) std::fill(group.scores.begin(), group.scores.end(), 0.0F);
}

void KeptRows::make_room(int64_t tokens, std::span<ggml_tensor* const> caches) {
    if (used_ + tokens <= plan_.rows || groups_.empty()) return;
    const int64_t keep = plan_.rows - rows_freed(tokens, plan_.rows);
    // A large step before the cache is full.
    if (keep >= used_) return;
    for (auto& [keys, group] : groups_) {
        for (int64_t head = 0; head < group.kv_heads; ++head) {
            std::span<float> scores;
            if (!group.scores.empty()) {
                scores =
                    std::span(group.scores)
                        .subspan(static_cast<size_t>(head * plan_.rows), static_cast<size_t>(plan_.rows));
            }
            const auto kept = rows_that_stay(plan_.options, used_, keep, scores);
            for (const size_t p : group.caches) {
                // Key heads, then value heads; or value heads alone.
                for (int64_t h = head; h < caches[p]->ne[2]; h += group.kv_heads) compact(caches[p], h, kept);
            }
            if (scores.empty()) continue;
            for (size_t row = 0; row < kept.size(); ++row)
                scores[row] = scores[static_cast<size_t>(kept[row])];
            std::fill(scores.begin() + keep, scores.end(), 0.0F);
        }
    }
    used_ = keep;
}

void KeptRows::add(size_t layer, std::span<const float> sums, int64_t stride, int64_t tokens) {
    Group& group = groups_.at(group_of_[layer]);
    for (int64_t head = 0; head < group.kv_heads; ++head) {
        const float* from = sums.data() + head * stride;
        float* to = group.scores.data() + head * plan_.rows;
        for (int64_t row = 0; row < used_ + tokens; ++row) to[row] += from[row];
    }
}

uint64_t KeptRows::bytes() const {
    uint64_t bytes = 0;
    for (const auto& [keys, group] : groups_) bytes += group.scores.size() * sizeof(float);
    return bytes;
}

}  // namespace refold
