#include "exit/exit_trace.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "exit/logit_measures.h"

namespace refold {
namespace {

bool is_measured(ExitRule rule) { return rule != ExitRule::none && rule != ExitRule::fixed; }

// The candidate thresholds of one loop, from strict to lax, each with the fraction of all tokens that would
// exit and disagree.
class LoopThresholds {
public:
    LoopThresholds(const ExitTrace& trace, ExitRule rule, int32_t loop)
        : strictest_(strictest_threshold(rule)) {
        std::vector<size_t> order(trace.tokens());
        std::iota(order.begin(), order.end(), size_t{0});
        const double sign = rule == ExitRule::entropy ? 1 : -1;
        const auto key = [&](size_t token) { return sign * trace.at(token, loop).confidence; };
        std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
        size_t wrong = 0;
        for (size_t i = 0; i < order.size(); ++i) {
            wrong += trace.at(order[i], loop).best != trace.at(order[i], trace.loops).best ? 1 : 0;
            // Equally confident tokens exit together.
            if (i + 1 < order.size() && key(order[i + 1]) == key(order[i])) continue;
            thresholds_.push_back(trace.at(order[i], loop).confidence);
            disagreements_.push_back(static_cast<double>(wrong) / static_cast<double>(order.size()));
        }
    }

    // The laxest threshold with which at most this fraction disagrees.
    double threshold(double disagreement) const {
        const auto end = std::upper_bound(disagreements_.begin(), disagreements_.end(), disagreement);
        return end == disagreements_.begin()
                   ? strictest_
                   : thresholds_[static_cast<size_t>(end - disagreements_.begin() - 1)];
    }

private:
    double strictest_;
    std::vector<double> thresholds_, disagreements_;
};

}  // namespace

LoopOutcome loop_outcome(ExitRule rule, const LoopLogits& logits, int32_t token) {
    const LogitMeasures m = measure_logits(logits);
    return {m.best, m.log_sum_exp - static_cast<double>(logits[static_cast<size_t>(token)]),
            rule == ExitRule::gate ? logits.exited : exit_confidence(rule, m)};
}

std::vector<int32_t> exits_of(const ExitTrace& trace, const ExitPolicy& policy) {
    std::vector<int32_t> exits(trace.tokens(), trace.loops);
    for (size_t t = 0; t < exits.size(); ++t) {
        for (int32_t loop = 1; loop < trace.loops; ++loop) {
            if (!policy.exits(loop, trace.at(t, loop).confidence)) continue;
            exits[t] = loop;
            break;
        }
    }
    return exits;
}

std::vector<int32_t> oracle_exits(const ExitTrace& trace) {
    std::vector<int32_t> exits(trace.tokens(), 1);
    for (size_t t = 0; t < exits.size(); ++t)
        while (trace.at(t, exits[t]).best != trace.at(t, trace.loops).best) ++exits[t];
    return exits;
}

void ExitCounts::add(const ExitCounts& other) {
    for (size_t i = 0; i < at_loop.size(); ++i) at_loop[i] += other.at_loop[i];
    agreed += other.agreed;
}

int64_t ExitCounts::tokens() const { return std::accumulate(at_loop.begin(), at_loop.end(), int64_t{0}); }

double ExitCounts::mean_loops() const {
    double sum = 0;
    for (size_t i = 0; i < at_loop.size(); ++i)
        sum += static_cast<double>(i + 1) * static_cast<double>(at_loop[i]);
    return sum / static_cast<double>(tokens());
}

double ExitCounts::agreement() const { return static_cast<double>(agreed) / static_cast<double>(tokens()); }

ExitCounts count_exits(const ExitTrace& trace, std::span<const int32_t> exits) {
    ExitCounts counts(trace.loops);
    for (size_t t = 0; t < exits.size(); ++t)
        counts.add(exits[t], trace.at(t, exits[t]).best == trace.at(t, trace.loops).best);
    return counts;
}

double strictest_threshold(ExitRule rule) { return rule == ExitRule::entropy ? 0 : 1; }

std::vector<double> thresholds_for(const ExitTrace& trace, ExitRule rule, double agreement) {
    if (!(agreement > 0 && agreement <= 1))
        fail(ErrorCode::usage, "exit",
             "an agreement of {} with the full model, expected more than 0, at most 1", agreement);
    if (!is_measured(rule)) return {};
    std::vector<LoopThresholds> loops;
    for (int32_t loop = 1; loop < trace.loops; ++loop) loops.emplace_back(trace, rule, loop);
    const auto thresholds = [&](double disagreement) {
        std::vector<double> found;
        for (const LoopThresholds& loop : loops) found.push_back(loop.threshold(disagreement));
        return found;
    };
    const auto enough = [&](double disagreement) {
        const ExitPolicy policy{.rule = rule, .thresholds = thresholds(disagreement)};
        return count_exits(trace, exits_of(trace, policy)).agreement() >= agreement;
    };
    // Bisection: thresholds that suffice for a higher agreement also suffice for a lower one, so a higher
    // agreement never ends with laxer thresholds.
    double strict = -1, lax = 1;
    if (enough(lax)) return thresholds(lax);
    for (int i = 0; i < 50; ++i) {
        const double middle = (strict + lax) / 2;
        (enough(middle) ? strict : lax) = middle;
    }
    return thresholds(strict);
}

}  // namespace refold
