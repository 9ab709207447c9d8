#include "eval/exit_perplexity.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "core/error.h"
#include "core/group.h"
#include "core/progress.h"
#include "eval/gather_windows.h"
#include "exit/exit_run.h"

namespace refold {
namespace {

// Result of a pass over the text: outcomes of the loops that each token ran, and the loop that it exited
// after.
struct Pass {
    ExitTrace trace;
    std::vector<int32_t> exits;
    double seconds = 0;
};

constexpr int kCalibrationRuns = 5;

// `token` counts the scored tokens of all windows; `loop` is not the last. Called by several threads.
using Decide = std::function<bool(size_t token, int32_t loop, const LoopOutcome& outcome)>;

template <typename T>
std::vector<T> joined(const std::vector<std::vector<T>>& parts) {
    std::vector<T> out;
    for (const auto& part : parts) out.insert(out.end(), part.begin(), part.end());
    return out;
}

void run_window(Engine& engine, int32_t sequence, const PerplexityWindow& window, ExitedKv kv,
                const LoopSink& sink) {
    // The last token predicts nothing.
    std::vector<int32_t> tokens{window.first};
    tokens.insert(tokens.end(), window.rest.begin(), window.rest.end() - 1);
    engine.truncate(sequence, 0);
    run_with_exits(engine, kv,
                   {.sequence = sequence, .tokens = tokens, .first_exit = window.first_scored - 1}, sink);
}

Pass run_pass(Engine& engine, const PerplexityPlan& plan, const char* label, ExitRule rule, ExitedKv kv,
              const Decide& exits) {
    const auto start = std::chrono::steady_clock::now();
    const int64_t needed = plan.context_needed();
    if (needed > engine.capabilities().context)
        fail(ErrorCode::usage, "ppl", "--context must be at most {}, got {}", engine.capabilities().context,
             needed);
    const std::optional<int32_t> sequence = engine.open(needed);
    if (!sequence) fail(ErrorCode::internal, "ppl", "no room for {} tokens in the engine", needed);
    const int32_t loops = engine.capabilities().loops;
    const auto stride = static_cast<size_t>(loops);
    const size_t windows = plan.windows.size();
    std::vector<std::vector<LoopOutcome>> outcomes(windows);
    std::vector<std::vector<int32_t>> exited(windows);
    uint64_t own = 0;
    for (size_t w = 0; w < windows; ++w)
        if (group().owns(w)) own += plan.windows[w].rest.size();
    Progress progress(label, own, "tokens");
    for (size_t w = 0, first_token = 0; w < windows; ++w) {
        const PerplexityWindow& window = plan.windows[w];
        const auto scored = static_cast<size_t>(window.scored());
        if (group().owns(w)) {
            const size_t first_row = window.first_scored - 1;
            outcomes[w].resize(scored * stride);
            exited[w].assign(scored, loops);
            run_window(engine, *sequence, window, kv,
                       [&](size_t row, int32_t loop, const LoopLogits& logits) {
                           const size_t token = row - first_row;
                           LoopOutcome& outcome = outcomes[w][token * stride + static_cast<size_t>(loop - 1)];
                           outcome = loop_outcome(rule, logits, window.rest[row]);
                           if (loop == loops || !exits(first_token + token, loop, outcome)) return false;
                           exited[w][token] = loop;
                           return true;
                       });
            progress.advance(window.rest.size());
        }
        first_token += scored;
    }
    engine.close(*sequence);
    progress.finish();
    if (group().size() > 1) {
        gather_windows(outcomes, plan, stride);
        gather_windows(exited, plan);
    }
    return {{loops, joined(outcomes)},
            joined(exited),
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

Pass run_all_loops(Engine& engine, const PerplexityPlan& plan, ExitRule rule) {
    return run_pass(engine, plan, "all loops", rule, ExitedKv::catch_up,
                    [](size_t, int32_t, const LoopOutcome&) { return false; });
}

Pass run_policy(Engine& engine, const PerplexityPlan& plan, const ExitPolicy& policy) {
    return run_pass(
        engine, plan, "with exits", policy.rule, policy.kv,
        [&](size_t, int32_t loop, const LoopOutcome& o) { return policy.exits(loop, o.confidence); });
}

ExitCounts counts_of(const Pass& pass, const ExitTrace& full) {
    ExitCounts counts(full.loops);
    for (size_t t = 0; t < pass.exits.size(); ++t)
        counts.add(pass.exits[t], pass.trace.at(t, pass.exits[t]).best == full.at(t, full.loops).best);
    return counts;
}

PerplexityResult result_of(const PerplexityPlan& plan, const Pass& pass, std::span<const int32_t> exits) {
    PerplexitySums sums(plan);
    size_t token = 0;
    for (const PerplexityWindow& window : plan.windows) {
        std::vector<double> nll(static_cast<size_t>(window.scored()));
        for (double& x : nll) {
            x = pass.trace.at(token, exits[token]).nll;
            ++token;
        }
        sums.add(window, nll);
    }
    return sums.result(pass.seconds);
}

}  // namespace

ExitPerplexity measure_exit_perplexity(Engine& engine, const PerplexityPlan& plan, const ExitPlan& exits) {
    const ExitPolicy& policy = exits.policy;
    check_exit_policy(exits.oracle ? ExitPolicy{.rule = ExitRule::fixed, .loop = 1} : policy,
                      engine.capabilities().loops, engine.capabilities().exit_gate);
    const Pass all = run_all_loops(engine, plan, policy.rule);
    Pass pass = all;
    pass.exits = exits.oracle ? oracle_exits(all.trace) : exits_of(all.trace, policy);
    if (policy.kv != ExitedKv::catch_up) {
        const std::vector<int32_t> oracle = pass.exits;
        pass = !exits.oracle ? run_policy(engine, plan, policy)
                             : run_pass(engine, plan, "with exits", policy.rule, policy.kv,
                                        [&](size_t token, int32_t loop, const LoopOutcome&) {
                                            return oracle[token] == loop;
                                        });
    }

    ExitPerplexity out;
    out.counts = counts_of(pass, all.trace);
    out.exited = result_of(plan, pass, pass.exits);
    for (int32_t loop = 1; loop <= engine.capabilities().loops; ++loop) {
        const std::vector<int32_t> here(pass.exits.size(), loop);
        out.at_loop.push_back(result_of(plan, all, here));
        out.agreement_at_loop.push_back(count_exits(all.trace, here).agreement());
    }
    auto next = pass.exits.begin();
    for (const PerplexityWindow& window : plan.windows) {
        out.exits.emplace_back(next, next + window.scored());
        next += window.scored();
    }
    return out;
}

ExitCalibration calibrate_exits(Engine& engine, const PerplexityPlan& plan, const ExitPolicy& given,
                                double agreement) {
    if (given.rule == ExitRule::none || given.rule == ExitRule::fixed)
        fail(ErrorCode::usage, "exit",
             "an agreement gives thresholds of probability, margin, entropy or gate, not of {}",
             exit_rule_name(given.rule));
    ExitPolicy policy = given;
    policy.thresholds = {strictest_threshold(policy.rule)};
    check_exit_policy(policy, engine.capabilities().loops, engine.capabilities().exit_gate);
    const Pass all = run_all_loops(engine, plan, policy.rule);
    const auto set = [&](double asked) { policy.thresholds = thresholds_for(all.trace, policy.rule, asked); };
    const auto counts = [&] {
        return policy.kv == ExitedKv::catch_up ? count_exits(all.trace, exits_of(all.trace, policy))
                                               : counts_of(run_policy(engine, plan, policy), all.trace);
    };
    set(agreement);
    ExitCounts found = counts();
    if (found.agreement() >= agreement) return {policy.thresholds, found};
    // Inexact keys and values disagree more often than the trace predicts, so ask for a higher agreement.
    policy.thresholds = {strictest_threshold(policy.rule)};
    ExitCalibration best{policy.thresholds, counts()};
    double low = agreement, high = 1;
    for (int run = 0; run < kCalibrationRuns; ++run) {
        const double asked = run == 0 ? high : (low + high) / 2;
        set(asked);
        found = counts();
        const bool enough = found.agreement() >= agreement;
        if (enough) best = {policy.thresholds, found};
        if (run == 0 && !enough) break;
        (enough ? high : low) = asked;
    }
    return best;
}

}  // namespace refold
