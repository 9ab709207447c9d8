// Eviction from the KV cache: which of a head's rows stay when the cache has fewer rows than the context has
// tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refold {

enum class KvPolicy {
    none,
    h2o,     // keep the most recent tokens and, per head, those with the largest accumulated attention
    recent,  // keep the first tokens ("attention sinks") and the most recent ones
};
const char* kv_policy_name(KvPolicy policy);

// H2O (Zhang et al. 2023, algorithm 1; UniAttn, table 3) or its plain baseline (StreamingLLM, Xiao et al.
// 2024, without its shift of positions: keys keep their rotation). Layers with a window keep all their rows.
// Rows are evicted before a step that would not fit, and a step has at most a quarter of the rows, so results
// depend on how a text is cut into steps.
struct EvictionOptions {
    KvPolicy policy = KvPolicy::none;
    double budget = 1;    // rows of the cache per token of the context, the tokens being run included
    double recent = 0.5;  // h2o: fraction of the rows kept that goes to the most recent tokens
    int64_t sinks = 4;    // recent: number of first tokens kept

    bool active() const { return policy != KvPolicy::none && budget < 1; }
    // Rows of a cache: ceil(budget * context).
    int64_t rows(int64_t context) const;
};

// Most tokens of one step with a cache of so many rows; they are among the rows.
int64_t longest_step(int64_t rows);
// Rows evicted before a step of `tokens` that does not fit: at least 1/16 of them, so that rows are not moved
// for every single token.
int64_t rows_freed(int64_t tokens, int64_t rows);

// The `keep` of one head's `used` rows that stay, ascending. `scores` [used]: accumulated attention, for h2o;
// of equal scores the later row stays.
std::vector<int64_t> rows_that_stay(const EvictionOptions& options, int64_t used, int64_t keep,
                                    std::span<const float> scores);

}  // namespace refold
