// Early exit: after which loop a token's result is taken (Recursive Transformers, section 3.6; CALM, Schuster
// et al. 2022, for the measures of confidence and what becomes of an exited token's keys and values).
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
};

// Keys and values of a token's later loops, which later tokens that go deeper attend to.
enum class ExitedKv {
    propagate,  // the later loops' projections of the state that it left with
    catch_up,   // the later loops are run after all, together with rows that need them
    share,      // those of the loop that it left after
};

struct ExitPolicy {
    ExitRule rule = ExitRule::none;
    int32_t loop = 0;                     // fixed: 1-based
    std::vector<double> thresholds = {};  // of loops 1, 2, ... but the last; one alone is for all
    ExitedKv kv = ExitedKv::catch_up;

    bool active() const { return rule != ExitRule::none; }
    // The result behind loop `loop` (1-based, not the last) is good enough. `logits` [n_vocab].
    bool exits(int32_t loop, std::span<const float> logits) const;
    // The same by what exit_confidence() gives for `rule`.
    bool exits(int32_t loop, double confidence) const;
};

// The measure that the rule compares; 0 for rules without one.
double exit_confidence(ExitRule rule, std::span<const float> logits);
double exit_confidence(ExitRule rule, const LogitMeasures& measures);

// Names as on the command line: "none", "fixed", "probability", "margin", "entropy"; "propagate", "catch-up",
// "share". Throw Error(usage) with the choices.
ExitRule exit_rule_from_name(const std::string& name);
const char* exit_rule_name(ExitRule rule);
ExitedKv exited_kv_from_name(const std::string& name);
const char* exited_kv_name(ExitedKv kv);

// Throws Error(usage) for a rule that does not fit so many loops: none to exit from, a loop or a threshold
// out of range, a wrong number of thresholds.
void check_exit_policy(const ExitPolicy& policy, int64_t loops);

}  // namespace refold
