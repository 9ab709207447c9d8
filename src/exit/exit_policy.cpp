#include "exit/exit_policy.h"

#include <algorithm>

#include "core/error.h"
#include "core/text.h"
#include "exit/logit_measures.h"

namespace refold {
namespace {

constexpr ExitRule kRules[] = {ExitRule::none,   ExitRule::fixed,   ExitRule::probability,
                               ExitRule::margin, ExitRule::entropy, ExitRule::gate};
constexpr ExitedKv kKvs[] = {ExitedKv::propagate, ExitedKv::catch_up, ExitedKv::share};

template <typename Choice, size_t n>
Choice from_name(const std::string& name, const Choice (&choices)[n], const char* (*name_of)(Choice),
                 const char* what) {
    std::vector<std::string> names;
    for (const Choice choice : choices) {
        if (name == name_of(choice)) return choice;
        names.emplace_back(name_of(choice));
    }
    fail(ErrorCode::usage, "exit", "unknown {} '{}' - {}", what, name, suggestion(name, names));
}

[[noreturn]] void wrong(const std::string& text) { fail(ErrorCode::usage, "exit", "{}", text); }

void check_thresholds(const ExitPolicy& policy, int64_t loops) {
    const char* rule = exit_rule_name(policy.rule);
    const auto count = static_cast<int64_t>(policy.thresholds.size());
    if (count == 0) wrong(fmt::format("{} needs a threshold (--exit-threshold)", rule));
    if (count != 1 && count != loops - 1)
        wrong(fmt::format(
            "{} thresholds for a model of {} loops, expected one, or {}: one per loop but the last", count,
            loops, loops - 1));
    for (const double threshold : policy.thresholds) {
        const bool entropy = policy.rule == ExitRule::entropy;
        if (threshold >= 0 && (entropy || threshold <= 1)) continue;
        wrong(fmt::format("threshold {} of {}, expected {}", threshold, rule,
                          entropy ? "nats, 0 or more" : "0 to 1"));
    }
}

}  // namespace

bool ExitPolicy::exits(int32_t at, const LoopLogits& logits) const {
    return rule == ExitRule::fixed ? at >= loop : exits(at, exit_confidence(rule, logits));
}

bool ExitPolicy::exits(int32_t at, double confidence) const {
    if (rule == ExitRule::none) return false;
    if (rule == ExitRule::fixed) return at >= loop;
    const double threshold = thresholds[thresholds.size() == 1 ? 0 : static_cast<size_t>(at - 1)];
    return rule == ExitRule::entropy ? confidence <= threshold : confidence >= threshold;
}

double exit_confidence(ExitRule rule, const LogitMeasures& measures) {
    switch (rule) {
        case ExitRule::none:
        case ExitRule::gate:
        case ExitRule::fixed: break;
        case ExitRule::probability: return measures.probability();
        case ExitRule::margin: return measures.margin();
        case ExitRule::entropy: return measures.entropy;
    }
    return 0;
}

double exit_confidence(ExitRule rule, const LoopLogits& logits) {
    if (rule == ExitRule::gate) return logits.exited;
    const bool measured = rule != ExitRule::none && rule != ExitRule::fixed;
    return measured ? exit_confidence(rule, measure_logits(logits)) : 0;
}

ExitRule exit_rule_from_name(const std::string& name) {
    return from_name(name, kRules, exit_rule_name, "exit rule");
}

const char* exit_rule_name(ExitRule rule) {
    switch (rule) {
        case ExitRule::none: break;
        case ExitRule::fixed: return "fixed";
        case ExitRule::probability: return "probability";
        case ExitRule::margin: return "margin";
        case ExitRule::entropy: return "entropy";
        case ExitRule::gate: return "gate";
    }
    return "none";
}

ExitedKv exited_kv_from_name(const std::string& name) {
    return from_name(name, kKvs, exited_kv_name, "policy for the keys and values of exited tokens");
}

const char* exited_kv_name(ExitedKv kv) {
    switch (kv) {
        case ExitedKv::propagate: return "propagate";
        case ExitedKv::catch_up: break;
        case ExitedKv::share: return "share";
    }
    return "catch-up";
}

void check_exit_policy(const ExitPolicy& policy, int64_t loops, bool has_gate) {
    if (policy.rule != ExitRule::fixed && policy.loop != 0)
        wrong(fmt::format("a loop to exit after (--exit-loop) belongs to the rule fixed, got {}",
                          exit_rule_name(policy.rule)));
    if (!policy.active() || policy.rule == ExitRule::fixed) {
        if (!policy.thresholds.empty())
            wrong(
                fmt::format("a threshold belongs to the rules probability, margin, entropy and gate, got {}",
                            exit_rule_name(policy.rule)));
    }
    if (!policy.active()) return;
    if (loops < 2)
        wrong(
            "the model has no loops to exit from - leave out --exit, or make a looped model (methods "
            "recursive and relax)");
    if (policy.rule == ExitRule::gate && !has_gate)
        wrong("the model has no gate of its own for exits - use probability, margin or entropy");
    if (policy.rule != ExitRule::fixed) {
        check_thresholds(policy, loops);
    } else if (policy.loop < 1 || policy.loop > loops) {
        wrong(fmt::format("exit after loop {} of a model of {} loops, expected 1 to {} (--exit-loop)",
                          policy.loop, loops, loops));
    }
}

}  // namespace refold
