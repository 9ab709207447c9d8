#include "eval/exit_perplexity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error_of.h"
#include "engine/compare.h"
#include "eval/protocols.h"
#include "exit/step_by_step.h"
#include "serve/fake_engine.h"

namespace refold {
namespace {

using testing::HasSubstr;

constexpr ExitedKv kEveryKv[] = {ExitedKv::propagate, ExitedKv::catch_up, ExitedKv::share};

FakeEngineOptions fake(int32_t loops) {
    FakeEngineOptions options;
    options.loops = loops;
    options.n_vocab = 32;
    options.context = options.kv_tokens = 24;
    options.max_rows = 7;
    return options;
}

// Windows of 24 tokens that overlap by half, so that some tokens are not scored.
PerplexityPlan plan_of(size_t tokens = 200) {
    return plan_windows(random_tokens(tokens, 32, 2), {.context = 24, .stride = 12});
}

struct Expected {
    double nll = 0;
    std::vector<std::vector<int32_t>> exits;
    std::vector<std::vector<int32_t>> best;
};

// By the definition: token by token, in a fresh engine for every window.
Expected expected(const PerplexityPlan& plan, int32_t loops, const ExitPolicy& policy) {
    Expected out;
    for (const PerplexityWindow& window : plan.windows) {
        FakeEngine engine(fake(loops));
        std::vector<int32_t> tokens{window.first};
        tokens.insert(tokens.end(), window.rest.begin(), window.rest.end() - 1);
        auto& exits = out.exits.emplace_back(static_cast<size_t>(window.scored()), loops);
        auto& best = out.best.emplace_back(exits.size());
        const ExitRows rows{
            .sequence = engine.open(24).value(), .tokens = tokens, .first_exit = window.first_scored - 1};
        run_step_by_step(engine, policy.kv, rows, [&](size_t t, int32_t loop, std::span<const float> logits) {
            const bool exit = loop == loops || policy.exits(loop, logits);
            if (!exit) return false;
            exits[t - rows.first_exit] = loop;
            best[t - rows.first_exit] = static_cast<int32_t>(argmax(logits));
            out.nll += measure_logits(logits).log_sum_exp -
                       static_cast<double>(logits[static_cast<size_t>(window.rest[t])]);
            return true;
        });
    }
    return out;
}

double agreement(const Expected& a, const Expected& b) {
    double same = 0, all = 0;
    for (size_t w = 0; w < a.best.size(); ++w) {
        for (size_t t = 0; t < a.best[w].size(); ++t) same += a.best[w][t] == b.best[w][t] ? 1 : 0;
        all += static_cast<double>(a.best[w].size());
    }
    return same / all;
}

TEST(ExitPerplexity, IsWhatStepByStepGives) {
    const PerplexityPlan plan = plan_of();
    for (const int32_t loops : {2, 3}) {
        const Expected full = expected(plan, loops, {});
        for (const ExitedKv kv : kEveryKv) {
            const ExitPolicy policy{.rule = ExitRule::margin, .thresholds = {0.2}, .kv = kv};
            FakeEngine engine(fake(loops));
            const ExitPerplexity found = measure_exit_perplexity(engine, plan, {policy});
            const Expected e = expected(plan, loops, policy);
            const auto n = static_cast<double>(plan.tokens_scored());
            EXPECT_EQ(found.exits, e.exits) << exited_kv_name(kv);
            EXPECT_NEAR(found.exited.mean_nll, e.nll / n, 1e-6) << exited_kv_name(kv);
            EXPECT_NEAR(found.at_loop.back().mean_nll, full.nll / n, 1e-6);
            EXPECT_DOUBLE_EQ(found.counts.agreement(), agreement(e, full));
            EXPECT_EQ(found.counts.tokens(), plan.tokens_scored());
            EXPECT_GT(found.counts.at_loop.front(), 0);
            EXPECT_GT(found.counts.at_loop.back(), 0);
            EXPECT_LT(found.counts.agreement(), 1);
            EXPECT_EQ(engine.open_sequences(), 0);
        }
    }
}

TEST(ExitPerplexity, EveryLoopIsTheShorterModel) {
    const PerplexityPlan plan = plan_of();
    FakeEngine engine(fake(3));
    const ExitPerplexity found =
        measure_exit_perplexity(engine, plan, {{.rule = ExitRule::fixed, .loop = 3}});
    EXPECT_EQ(found.exited.mean_nll, found.at_loop[2].mean_nll);
    EXPECT_EQ(found.counts.agreement(), 1);
    EXPECT_EQ(found.counts.mean_loops(), 3);
    for (const int32_t loop : {1, 2, 3}) {
        const Expected e = expected(plan, loop, {});
        const auto at = static_cast<size_t>(loop - 1);
        EXPECT_NEAR(found.at_loop[at].mean_nll, e.nll / static_cast<double>(plan.tokens_scored()), 1e-6);
        EXPECT_DOUBLE_EQ(found.agreement_at_loop[at], agreement(e, expected(plan, 3, {})));
        for (const ExitedKv kv : kEveryKv) {
            const ExitPerplexity fixed =
                measure_exit_perplexity(engine, plan, {{.rule = ExitRule::fixed, .loop = loop, .kv = kv}});
            EXPECT_EQ(fixed.exited.mean_nll, found.at_loop[at].mean_nll);
        }
    }
}

TEST(ExitPerplexity, TheOracleExitsWhereItAgrees) {
    const PerplexityPlan plan = plan_of();
    FakeEngine engine(fake(3));
    const ExitPerplexity oracle = measure_exit_perplexity(engine, plan, {.oracle = true});
    EXPECT_EQ(oracle.counts.agreement(), 1);
    EXPECT_GT(oracle.counts.at_loop[0], 0);
    EXPECT_GT(oracle.counts.at_loop[1], 0);
    EXPECT_GT(oracle.counts.at_loop[2], 0);
    // The same tokens exit whatever becomes of their keys and values; what comes of it differs.
    const ExitPerplexity shared =
        measure_exit_perplexity(engine, plan, {.policy = {.kv = ExitedKv::share}, .oracle = true});
    EXPECT_EQ(shared.exits, oracle.exits);
    EXPECT_NE(shared.exited.mean_nll, oracle.exited.mean_nll);
}

TEST(ExitPerplexity, CalibrationReachesTheWantedAgreement) {
    const PerplexityPlan plan = plan_of(600);
    for (const ExitedKv kv : kEveryKv) {
        double mean_before = 0;
        for (const double wanted : {0.8, 0.9, 0.97}) {
            FakeEngine engine(fake(3));
            ExitPolicy policy{.rule = ExitRule::probability, .kv = kv};
            const ExitCalibration found = calibrate_exits(engine, plan, policy, wanted);
            EXPECT_GE(found.counts.agreement(), wanted) << exited_kv_name(kv);
            EXPECT_GE(found.counts.mean_loops(), mean_before) << exited_kv_name(kv);
            mean_before = found.counts.mean_loops();
            policy.thresholds = found.thresholds;
            const ExitPerplexity again = measure_exit_perplexity(engine, plan, {policy});
            EXPECT_EQ(again.counts.at_loop, found.counts.at_loop);
            EXPECT_EQ(again.counts.agreed, found.counts.agreed);
        }
    }
}

TEST(ExitPerplexity, WhatDoesNotFitIsRefused) {
    const PerplexityPlan plan = plan_of();
    FakeEngine engine(fake(3)), flat(fake(1)), shorter([] {
        FakeEngineOptions options = fake(3);
        options.context = 20;
        return options;
    }());
    const ExitPlan exits{{.rule = ExitRule::fixed, .loop = 1}};
    const auto refused = [](auto&& body, const char* part) {
        EXPECT_THAT(error_of(body, ErrorCode::usage), HasSubstr(part));
    };
    refused([&] { measure_exit_perplexity(flat, plan, exits); }, "no loops");
    refused([&] { measure_exit_perplexity(flat, plan, {.oracle = true}); }, "no loops");
    refused([&] { measure_exit_perplexity(shorter, plan, exits); }, "at most 20, got 23");
    refused([&] { calibrate_exits(engine, plan, exits.policy, 0.9); }, "not of fixed");
    refused([&] { calibrate_exits(engine, plan, {.rule = ExitRule::margin}, 1.5); }, "at most 1");
}

}  // namespace
}  // namespace refold
