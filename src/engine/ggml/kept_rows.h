// The rows of caches with eviction (engine/eviction.h). Every head keeps the same number of rows, in the
// order of their tokens, at the front of its cache; new rows follow.
#pragma once

#include <ggml.h>

#include <map>
#include <span>
#include <vector>

#include "engine/eviction.h"
#include "model/model.h"

namespace refold {

// Which of a model's caches evict.
struct EvictionPlan {
    EvictionOptions options;
    int64_t rows = 0;          // of a cache that evicts; 0: none does
    std::vector<bool> evicts;  // by layer

    EvictionPlan() = default;
    EvictionPlan(const Model& model, const EvictionOptions& options, int64_t context);
    bool at(size_t layer) const { return rows > 0 && evicts[layer]; }
    // Whether the attention of the layer's queries is accumulated.
    bool scores(size_t layer) const { return options.policy == KvPolicy::h2o && at(layer); }
};

// The rows of one sequence. Layers that attend to the same keys evict together, by the sum of their
// attention.
class KeptRows {
public:
    KeptRows(const EvictionPlan& plan, const Model& model);

    int64_t used() const { return used_; }
    void clear();
    // Evicts rows of `caches` (KvCache::layers) until `tokens` more fit.
    void make_room(int64_t tokens, std::span<ggml_tensor* const> caches);
    // Adds a layer's attention of one step to each row's score: `sums` [kv heads][stride], of which the rows
    // in use count, including those of the step's `tokens`.
    void add(size_t layer, std::span<const float> sums, int64_t stride, int64_t tokens);
    // Counts the rows that the step has written.
    void append(int64_t tokens) { used_ += tokens; }
    uint64_t bytes() const;

private:
    struct Group {
        std::vector<size_t> caches;  // layers with tensors of their own in the cache
        int64_t kv_heads = 0;
        std::vector<float> scores;  // h2o: [kv heads][rows]
    };

    const EvictionPlan& plan_;
    std::map<size_t, Group> groups_;  // by the layer of their keys
    std::vector<size_t> group_of_;    // by layer
    int64_t used_ = 0;
};

}  // namespace refold
