// The outcome of every loop for every token of a text. Exits, their statistics and thresholds follow from it
// without running the model again, if the keys and values of exited tokens are exact (ExitedKv::catch_up).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exit/exit_policy.h"

namespace refold {

struct LoopOutcome {
    int32_t best = 0;       // likeliest token
    double nll = 0;         // negative log likelihood of the text's token
    double confidence = 0;  // exit_confidence()
};

// The outcome of logits that predict `token`.
LoopOutcome loop_outcome(ExitRule rule, const LoopLogits& logits, int32_t token);

struct ExitTrace {
    int32_t loops = 0;
    std::vector<LoopOutcome> outcomes = {};  // [tokens, loops]

    size_t tokens() const { return outcomes.size() / static_cast<size_t>(loops); }
    // loop: 1-based
    const LoopOutcome& at(size_t token, int32_t loop) const {
        return outcomes[token * static_cast<size_t>(loops) + static_cast<size_t>(loop - 1)];
    }
};

// The loops after which the tokens exit.
std::vector<int32_t> exits_of(const ExitTrace& trace, const ExitPolicy& policy);
// The earliest loop with the same likeliest token as the last loop (Recursive Transformers, section 3.8).
std::vector<int32_t> oracle_exits(const ExitTrace& trace);

// Counts of tokens by the loop after which they exited.
struct ExitCounts {
    std::vector<int64_t> at_loop;  // [loops]
    int64_t agreed = 0;            // tokens with the same likeliest next token as the full model

    explicit ExitCounts(int32_t loops = 0) : at_loop(static_cast<size_t>(loops)) {}
    void add(int32_t loop, bool agrees) {
        ++at_loop[static_cast<size_t>(loop - 1)];
        agreed += agrees ? 1 : 0;
    }
    void add(const ExitCounts& other);
    int64_t tokens() const;
    // Both need at least one token.
    double mean_loops() const;
    double agreement() const;
};

ExitCounts count_exits(const ExitTrace& trace, std::span<const int32_t> exits);

// The threshold that practically no token meets: probability or margin 1, entropy 0.
double strictest_threshold(ExitRule rule);
// The laxest thresholds, one per loop but the last, with which at least the fraction `agreement` of the
// trace's tokens get the full model's likeliest token. All loops allow the same fraction of tokens that would
// exit and disagree. A higher agreement never gives a laxer threshold. Empty for rules without thresholds.
// Throws Error(usage) for an agreement outside (0, 1].
std::vector<double> thresholds_for(const ExitTrace& trace, ExitRule rule, double agreement);

}  // namespace refold
