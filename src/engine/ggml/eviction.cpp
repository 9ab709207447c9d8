#include "engine/ggml/eviction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "model/cache_groups.h"

namespace refold {
namespace {

// A step takes at most one of so many parts of the rows: more would leave too few old ones.
constexpr int64_t kStepsPerCache = 4;
// One of so many parts of the rows leaves at least, so that rows are not moved for every single token.
constexpr int64_t kEvictionsPerCache = 16;

// Rows that leave for a step, at least.
int64_t freed_for(int64_t tokens, int64_t rows) { return std::max(tokens, rows / kEvictionsPerCache); }

bool is_part(double x) { return x >= 0 && x <= 1; }

// Moves the rows of one head to the front, run by run.
void compact(ggml_tensor* cache, int64_t head, std::span<const int64_t> kept) {
    char* rows = static_cast<char*>(cache->data) + static_cast<size_t>(head) * cache->nb[2];
    for (size_t first = 0, last = 0; first < kept.size(); first = last) {
        for (last = first + 1; last < kept.size() && kept[last] == kept[last - 1] + 1;) ++last;
        if (kept[first] == static_cast<int64_t>(first)) continue;
        std::memmove(rows + first * cache->nb[1], rows + static_cast<size_t>(kept[first]) * cache->nb[1],
                     (last - first) * cache->nb[1]);
    }
}

}  // namespace

const char* kv_policy_name(KvPolicy policy) {
    switch (policy) {
        case KvPolicy::h2o: return "h2o";
        case KvPolicy::recent: return "recent";
        default: return "none";
    }
}

int64_t EvictionOptions::rows(int64_t context) const {
    // 0.07 * 100 is a little more than 7.
    return static_cast<int64_t>(std::ceil(budget * static_cast<double>(context) - 1e-6));
}

int64_t longest_step(int64_t rows) { return std::max<int64_t>(1, rows / kStepsPerCache); }

void check_eviction(const EngineOptions& options, const ModelConfig& config) {
    const EvictionOptions& o = options.eviction;
    if (!(o.budget > 0)) fail(ErrorCode::usage, "engine", "KV budget must be above 0, got {}", o.budget);
    if (!is_part(o.recent))
        fail(ErrorCode::usage, "engine", "KV recent part must be 0 to 1, got {}", o.recent);
    if (o.sinks < 0) fail(ErrorCode::usage, "engine", "KV sinks must be at least 0, got {}", o.sinks);
    if (o.policy == KvPolicy::none) {
        if (o.budget < 1) fail(ErrorCode::usage, "engine", "a KV budget needs a policy: h2o or recent");
        return;
    }
    const auto refuse = [&](const char* reason) {
        fail(ErrorCode::unsupported, "engine", "KV eviction ({}) {}", kv_policy_name(o.policy), reason);
    };
    if (!config.causal) refuse("needs a decoder: an encoder has no KV cache");
    if (options.kind != EngineKind::ggml) refuse("needs the ggml engine");
    if (config.max_alibi_bias > 0) refuse("does not work with ALiBi: its distances are those of all rows");
    if (config.n_prefix > 0) refuse("does not work with a prefix, which every token sees");
    if (!o.active()) return;
    if (options.range || options.observer) refuse("does not work with ranges and observers");
    const int64_t rows = o.rows(options.context), least = o.policy == KvPolicy::recent ? o.sinks + 1 : 1;
    if (rows - freed_for(longest_step(rows), rows) < least) {
        fail(ErrorCode::usage, "engine",
             "a KV budget of {} of {} tokens is {} rows, too few for policy {}{} - raise the budget or the "
             "context",
             o.budget, options.context, rows, kv_policy_name(o.policy),
             o.policy == KvPolicy::recent ? fmt::format(" with {} sinks", o.sinks) : "");
    }
}

std::vector<int64_t> rows_that_stay(const EvictionOptions& options, int64_t used, int64_t keep,
                                    std::span<const float> scores) {
    const int64_t chosen =
        options.policy == KvPolicy::recent
            ? options.sinks
            : keep - static_cast<int64_t>(std::ceil(options.recent * static_cast<double>(keep) - 1e-6));
    // Those that can be chosen, then the most recent ones.
    const int64_t recent = keep - chosen;
    std::vector<int64_t> rows(static_cast<size_t>(used - recent));
    std::iota(rows.begin(), rows.end(), 0);
    if (options.policy == KvPolicy::h2o) {
        const auto better = [&](int64_t a, int64_t b) {
            const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
            return x != y ? x > y : a > b;
        };
        std::nth_element(rows.begin(), rows.begin() + chosen, rows.end(), better);
        std::sort(rows.begin(), rows.begin() + chosen);
    }
    rows.resize(static_cast<size_t>(keep));
    std::iota(rows.begin() + chosen, rows.end(), used - recent);
    return rows;
}

EvictionPlan::EvictionPlan(const Model& model, const EvictionOptions& o, int64_t context) : options(o) {
    if (!options.active()) return;
    rows = options.rows(context);
    for (size_t p = 0; p < model.topology.positions.size(); ++p) evicts.push_back(evictable(model, p));
}

KeptRows::KeptRows(const EvictionPlan& plan, const Model& model) : plan_(plan) {
    for (size_t p = 0; p < model.topology.positions.size(); ++p) {
        const size_t keys = group_of_.emplace_back(key_position(model.topology, p));
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
    const int64_t keep = plan_.rows - freed_for(tokens, plan_.rows);
    // A large step may come before the cache is full.
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

void KeptRows::add(size_t position, std::span<const float> sums, int64_t stride, int64_t tokens) {
    Group& group = groups_.at(group_of_[position]);
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
