// Early exit: the loop after which a token's result is taken (Recursive Transformers, section 3.7). The
// confidence measures and the handling of an exited token's keys and values follow CALM (Schuster et al.
// 2022).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "exit/logit_measures.h"

namespace refold {

enum class ExitRule {
    none,         // all loops
    fixed,        // after loop `loop`
    probability,  // largest probability at least the threshold
    margin,       // largest minus second largest probability at least the threshold
    entropy,      // entropy in nats at most the threshold
    gate,         // probability to have exited, by the model's own gate, at least the threshold
};

// The logits of a token after a loop [n_vocab], and StepOutput::exited (0 without a gate).
struct LoopLogits : std::span<const float> {
    LoopLogits(std::span<const float> logits, double probability = 0)
        : std::span<const float>(logits), exited(probability) {}
    LoopLogits(const std::vector<float>& logits) : LoopLogits(std::span<const float>(logits)) {}
    double exited;
};

// The keys and values of an exited token in the loops that it skips. Later tokens that run these loops attend
// to them.
enum class ExitedKv {
    propagate,  // projections of the residual stream at the exit by the skipped loops
    catch_up,   // exact: the skipped loops run later, together with rows that need them
    share,      // those of the last loop that ran
};

struct ExitPolicy {
    ExitRule rule = ExitRule::none;
    int32_t loop = 0;                     // fixed: 1-based
    std::vector<double> thresholds = {};  // for loops 1, 2, ... but the last; a single one is for all
    ExitedKv kv = ExitedKv::catch_up;

    bool active() const { return rule != ExitRule::none; }
    // Whether a token with these logits [n_vocab] exits after loop `at` (1-based, not the last).
    bool exits(int32_t at, const LoopLogits& logits) const;
    // The same, given exit_confidence() for `rule`.
    bool exits(int32_t at, double confidence) const;
};

// The measure that the rule compares; 0 for rules without one.
double exit_confidence(ExitRule rule, const LoopLogits& logits);
// Of the rules that measure logits.
double exit_confidence(ExitRule rule, const LogitMeasures& measures);

// Names on the command line: "none", "fixed", "probability", "margin", "entropy", "gate"; "propagate",
// "catch-up", "share". Unknown names throw Error(usage) with the choices.
ExitRule exit_rule_from_name(const std::string& name);
const char* exit_rule_name(ExitRule rule);
ExitedKv exited_kv_from_name(const std::string& name);
const char* exited_kv_name(ExitedKv kv);

// Throws Error(usage) for a policy that does not fit this number of loops: a single loop, a loop or a
// threshold out of range, a wrong number of thresholds; or for the rule gate without a gate.
void check_exit_policy(const ExitPolicy& policy, int64_t loops, bool has_gate = false);

}  // namespace refold
