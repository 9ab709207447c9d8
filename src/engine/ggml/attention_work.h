// The work items of an attention operation, which threads take from a common queue.
#pragma once

#include <atomic>
#include <vector>

#include "engine/ggml/attention_step.h"

namespace refold {

// Calls run(first, last) for every run of consecutive tokens [first, last) of one sequence.
template <class Do>
void for_runs(const AttentionStep& step, Do run) {
    for (int64_t first = 0, last = 0; first < step.tokens; first = last) {
        for (last = first + 1; last < step.tokens && step.continues(last);) ++last;
        run(first, last);
    }
}

// Tokens [first, last) of one run, and the query heads of one KV head.
struct AttentionWorkItem {
    int64_t kv_head, first, last;
    bool single_token;  // of a run too short for tiles
};

class AttentionWorkQueue {
public:
    explicit AttentionWorkQueue(int threads) : ranges_(static_cast<size_t>(threads)) {}

    // Calls visit(AttentionWorkItem) for the items of a step, each on one thread. All threads of a node call
    // it.
    template <class Visit>
    void for_each(const AttentionStep& step, int thread, int threads, Visit visit) {
        const std::vector<TokenRange>& ranges = split_tokens(step, thread, threads);
        take(static_cast<int64_t>(ranges.size()) * step.kv_heads, threads, [&](int64_t i) {
            const TokenRange& range = ranges[static_cast<size_t>(i / step.kv_heads)];
            visit(AttentionWorkItem{i % step.kv_heads, range.first, range.last, range.single_token});
        });
    }

    // Calls visit(i) for 0 to count - 1, each on one thread, on which they ascend. All threads of a node call
    // it.
    template <class Visit>
    void take(int64_t count, int threads, Visit visit) {
        for (int64_t i = next_.fetch_add(1); i < count; i = next_.fetch_add(1)) visit(i);
        // A barrier follows, that of the node or the caller's, so the last thread to finish may reset the
        // queue.
        if (finished_.fetch_add(1) + 1 == threads) {
            finished_.store(0);
            next_.store(0);
        }
    }

private:
    struct TokenRange {
        int64_t first, last;
        bool single_token;
    };
    // Every thread computes the same ranges for itself, which needs no barrier.
    const std::vector<TokenRange>& split_tokens(const AttentionStep& step, int thread, int threads);

    std::vector<std::vector<TokenRange>> ranges_;  // by thread
    std::atomic<int64_t> next_{0};
    std::atomic<int> finished_{0};
};

}  // namespace refold
