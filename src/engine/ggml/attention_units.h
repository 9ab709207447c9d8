// The work of an attention operation in units, which threads take one after the other.
#pragma once

#include <atomic>
#include <vector>

#include "engine/ggml/attention_step.h"

namespace refold {

// Calls run(first, last) for the runs of tokens [first, last) of one sequence.
template <class Do>
void for_runs(const AttentionStep& step, Do run) {
    for (int64_t first = 0, last = 0; first < step.tokens; first = last) {
        for (last = first + 1; last < step.tokens && step.continues(last);) ++last;
        run(first, last);
    }
}

// Tokens [first, last) of one run and the query heads of one key/value head.
struct AttentionUnit {
    int64_t kv_head, first, last;
    bool few;  // one token, of a run too short for tiles
};

class AttentionUnits {
public:
    // Runs of up to this many tokens of a sequence are taken token by token.
    static constexpr int64_t kFewTokens = 4;

    explicit AttentionUnits(int threads) : blocks_(static_cast<size_t>(threads)) {}

    // Calls unit(AttentionUnit) for all units of a step. Called by all threads of a node.
    template <class Do>
    void for_each(const AttentionStep& step, int thread, int threads, Do unit) {
        const std::vector<Block>& blocks = divide(step, thread, threads);
        const int64_t units = static_cast<int64_t>(blocks.size()) * step.kv_heads;
        for (int64_t i = next_.fetch_add(1); i < units; i = next_.fetch_add(1)) {
            const Block& block = blocks[static_cast<size_t>(i / step.kv_heads)];
            unit(AttentionUnit{i % step.kv_heads, block.first, block.last, block.few});
        }
        // ggml's threads meet before the next node, so the last one may prepare it.
        if (finished_.fetch_add(1) + 1 == threads) {
            finished_.store(0);
            next_.store(0);
        }
    }

private:
    struct Block {
        int64_t first, last;
        bool few;
    };
    // The same for every thread.
    const std::vector<Block>& divide(const AttentionStep& step, int thread, int threads);

    std::vector<std::vector<Block>> blocks_;  // by thread
    std::atomic<int64_t> next_{0};
    std::atomic<int> finished_{0};
};

}  // namespace refold
