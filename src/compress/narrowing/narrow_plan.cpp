#include "compress/narrowing/narrow_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "compress/method/allocation.h"
#include "compress/method/selection.h"
#include "core/error.h"
#include "model/accounting.h"

namespace refold {
namespace {

int64_t parameters_of(const std::vector<Narrowable>& modules, bool attention) {
    int64_t out = 0;
    for (const Narrowable& m : modules) out += m.is_attention() == attention ? m.parts * m.parameters : 0;
    return out;
}

// Parameters that the modules keep of theirs.
struct Budget {
    int64_t ffn = 0, attention = 0;
};

Budget budget_of(const Model& model, const std::vector<Narrowable>& modules, const NarrowGoal& goal) {
    const int64_t ffn = parameters_of(modules, false), attention = parameters_of(modules, true);
    const auto groups = static_cast<double>(attention) * (1 - goal.attention.value_or(0));
    Budget out{static_cast<int64_t>(std::round(static_cast<double>(ffn) * (1 - goal.ffn))),
               static_cast<int64_t>(std::round(groups))};
    if (goal.parameters) {
        const auto all = static_cast<int64_t>(account(model).model.parameters);
        const auto stay = static_cast<int64_t>(static_cast<double>(all) * *goal.parameters);
        out.ffn = ffn - (all + goal.added - stay - (attention - out.attention));
        if (out.ffn < (goal.attention ? 0 : -attention))
            fail(ErrorCode::usage, "narrow", "parameters={}: the FFNs have only {:.1f} % of the model's",
                 *goal.parameters, 100 * static_cast<double>(ffn) / static_cast<double>(all));
        out.ffn = std::min(out.ffn, ffn);
    }
    return out;
}

// The channels that stay when a layer may keep `channels`.
int64_t rounded_down(int64_t channels, int64_t multiple) {
    return std::max(multiple, channels / multiple * multiple);
}

}  // namespace

void check_goal(const Model& model, const std::vector<Narrowable>& modules, const NarrowGoal& goal) {
    budget_of(model, modules, goal);
}

std::vector<int64_t> uniform_removals(const Model& model, const std::vector<Narrowable>& modules,
                                      const NarrowGoal& goal) {
    const Budget budget = budget_of(model, modules, goal);
    const double stays =
        static_cast<double>(budget.ffn) / std::max(1.0, static_cast<double>(parameters_of(modules, false)));
    std::vector<int64_t> out;
    for (const Narrowable& m : modules) {
        if (m.is_attention()) {
            out.push_back(
                static_cast<int64_t>(part_of(goal.attention.value_or(0), static_cast<size_t>(m.parts))));
        } else if (stays >= 1) {
            out.push_back(0);
        } else {
            const auto channels = static_cast<int64_t>(part_of(stays, static_cast<size_t>(m.parts)));
            out.push_back(m.parts - std::min(m.parts, rounded_down(channels, goal.multiple)));
        }
    }
    return out;
}

std::vector<int64_t> global_removals(const Model& model, const std::vector<Narrowable>& modules,
                                     const NarrowGoal& goal, const RemovalCosts& costs) {
    const Budget budget = budget_of(model, modules, goal);
    std::vector<int64_t> out(modules.size());
    // `some` of the modules share a budget.
    const auto spend = [&](const std::vector<size_t>& some, int64_t parameters) {
        std::vector<AllocationItem> items;
        std::vector<std::vector<int64_t>> removed;
        for (const size_t i : some) {
            const Narrowable& m = modules[i];
            const int64_t multiple = m.is_attention() ? 1 : goal.multiple;
            AllocationItem& item = items.emplace_back();
            std::vector<int64_t>& counts = removed.emplace_back();
            for (size_t n = 0; n < costs[i].size(); ++n) {
                const int64_t kept = m.parts - static_cast<int64_t>(n);
                if (n > 0 && kept % multiple != 0) continue;
                item.push_back({static_cast<uint64_t>(kept * m.parameters), costs[i][n]});
                counts.push_back(static_cast<int64_t>(n));
            }
        }
        const auto found = allocate(items, static_cast<uint64_t>(std::max<int64_t>(0, parameters)));
        if (!found)
            fail(ErrorCode::usage, "narrow",
                 "allocation=global takes at most three quarters of a layer's channels: too few for this "
                 "goal");
        for (size_t i = 0; i < some.size(); ++i) out[some[i]] = removed[i][found->chosen[i]];
    };
    std::vector<size_t> ffns, attentions, all(modules.size());
    std::iota(all.begin(), all.end(), size_t{0});
    for (const size_t i : all) (modules[i].is_attention() ? attentions : ffns).push_back(i);
    if (!goal.attention) {
        spend(all, budget.ffn + budget.attention);
    } else {
        spend(ffns, budget.ffn);
        spend(attentions, budget.attention);
    }
    return out;
}

}  // namespace refold
