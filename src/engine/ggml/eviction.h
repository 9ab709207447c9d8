// KV eviction: which rows stay in caches that have fewer rows than the context has tokens. Every head keeps
// equally many rows, in the order of their tokens, at the front of its cache; new ones follow.
#pragma once

#include <ggml.h>

#include <map>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace refold {

// Most tokens of one step; they are among the rows.
int64_t longest_step(int64_t rows);
// Throws Error(usage) for options out of range and for fewer rows than the policy needs, Error(unsupported)
// for models and engines without eviction.
void check_eviction(const EngineOptions& options, const ModelConfig& config);

// The `keep` of `used` rows of one head that stay, ascending. `scores` [used]: accumulated attention, for
// h2o; of equal ones the later row stays.
std::vector<int64_t> rows_that_stay(const EvictionOptions& options, int64_t used, int64_t keep,
                                    std::span<const float> scores);

// What is evicted from a model's caches.
struct EvictionPlan {
    EvictionOptions options;
    int64_t rows = 0;          // of the caches that evict; 0: none does
    std::vector<bool> evicts;  // by position

    EvictionPlan() = default;
    EvictionPlan(const Model& model, const EvictionOptions& options, int64_t context);
    bool at(size_t position) const { return rows > 0 && evicts[position]; }
    // The attention of the position's queries counts.
    bool scores(size_t position) const { return options.policy == KvPolicy::h2o && at(position); }
};

// The rows of one sequence. Positions whose probabilities are of the same keys evict together, by the sum of
// their attention.
class KeptRows {
public:
    KeptRows(const EvictionPlan& plan, const Model& model);

    int64_t used() const { return used_; }
    void clear();
    // Evicts rows of `caches` (by position, as KvCache has them) until `tokens` more fit.
    void make_room(int64_t tokens, std::span<ggml_tensor* const> caches);
    // Adds a step's attention of a position: [kv heads][stride], of which the rows in use count, those of
    // `tokens` new ones included.
    void add(size_t position, std::span<const float> sums, int64_t stride, int64_t tokens);
    // The step's tokens are in the caches now.
    void append(int64_t tokens) { used_ += tokens; }
    uint64_t bytes() const;

private:
    struct Group {
        std::vector<size_t> caches;  // positions with tensors of their own
        int64_t kv_heads = 0;
        std::vector<float> scores;  // h2o: [kv heads][rows]
    };

    const EvictionPlan& plan_;
    std::map<size_t, Group> groups_;  // by the position of their keys
    std::vector<size_t> group_of_;    // by position
    int64_t used_ = 0;
};

}  // namespace refold
