// What every loop says of every token of a text: from it come exits, their figures and thresholds, without
// running the model again where the keys and values of exited tokens are exact (ExitedKv::catch_up).
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

// Of logits that predict `token`.
LoopOutcome loop_outcome(ExitRule rule, std::span<const float> logits, int32_t token);

struct ExitTrace {
    int32_t loops = 0;
    std::vector<LoopOutcome> outcomes = {};  // [tokens, loops]

    size_t tokens() const { return outcomes.size() / static_cast<size_t>(loops); }
    // loop: 1-based
    const LoopOutcome& at(size_t token, int32_t loop) const {
        return outcomes[token * static_cast<size_t>(loops) + static_cast<size_t>(loop - 1)];
    }
};

// Loops that the tokens exit after.
std::vector<int32_t> exits_of(const ExitTrace& trace, const ExitPolicy& policy);
// The earliest loop whose likeliest token is the last loop's (Recursive Transformers, section 3.8).
std::vector<int32_t> oracle_exits(const ExitTrace& trace);

// Tokens by the loop that they exited after.
struct ExitCounts {
    std::vector<int64_t> at_loop;  // [loops]
    int64_t agreed = 0;            // tokens whose likeliest next token is the full model's

    explicit ExitCounts(int32_t loops = 0) : at_loop(static_cast<size_t>(loops)) {}
    void add(int32_t loop, bool agrees) {
        ++at_loop[static_cast<size_t>(loop - 1)];
        agreed += agrees ? 1 : 0;
    }
    void add(const ExitCounts& other);
    int64_t tokens() const;
    // Of at least one token.
    double mean_loops() const;
    double agreement() const;
};

ExitCounts count_exits(const ExitTrace& trace, std::span<const int32_t> exits);

// The threshold that practically no token meets: 1, or 0 nats.
double strictest_threshold(ExitRule rule);
// Thresholds, one per loop but the last, as lax as they can be while at least `agreement` of the trace's
// tokens get the full model's likeliest token. What they have in common is the part of all tokens that is as
// confident at a loop and disagrees. A higher agreement never gives a laxer threshold. Empty for
// rules without thresholds. Throws Error(usage) for an agreement that is not in (0, 1].
std::vector<double> thresholds_for(const ExitTrace& trace, ExitRule rule, double agreement);

}  // namespace refold
