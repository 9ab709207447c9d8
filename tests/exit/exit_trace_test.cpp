#include "exit/exit_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/error_of.h"

namespace refold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Loop {
    double confidence;
    bool agrees;
};

// A trace of two loops with these outcomes of the first loop per token.
ExitTrace two_loops(const std::vector<Loop>& first) {
    ExitTrace trace{.loops = 2};
    for (const Loop& loop : first) {
        trace.outcomes.push_back({loop.agrees ? 5 : 4, 1, loop.confidence});
        trace.outcomes.push_back({5, 0.5, 1});
    }
    return trace;
}

const ExitTrace kFive = two_loops({{0.5, false}, {0.9, true}, {0.7, false}, {0.8, true}, {0.6, true}});

TEST(ExitTrace, OutcomeByHand) {
    const std::vector<float> logits{std::log(0.2F), std::log(0.7F), std::log(0.1F)};
    const LoopOutcome outcome = loop_outcome(ExitRule::margin, logits, 2);
    EXPECT_EQ(outcome.best, 1);
    EXPECT_NEAR(outcome.nll, -std::log(0.1), 1e-6);
    EXPECT_NEAR(outcome.confidence, 0.5, 1e-6);
}

TEST(ExitTrace, ExitsByConfidence) {
    EXPECT_THAT(exits_of(kFive, {.rule = ExitRule::probability, .thresholds = {0.7}}),
                ElementsAre(2, 1, 1, 1, 2));
    EXPECT_THAT(exits_of(kFive, {.rule = ExitRule::entropy, .thresholds = {0.7}}),
                ElementsAre(1, 2, 1, 2, 1));
    EXPECT_THAT(exits_of(kFive, {.rule = ExitRule::fixed, .loop = 1}), ElementsAre(1, 1, 1, 1, 1));
    EXPECT_THAT(exits_of(kFive, {.rule = ExitRule::fixed, .loop = 2}), ElementsAre(2, 2, 2, 2, 2));
    EXPECT_THAT(exits_of(kFive, {}), ElementsAre(2, 2, 2, 2, 2));
}

TEST(ExitTrace, CountsByHand) {
    const ExitCounts counts = count_exits(kFive, std::vector<int32_t>{2, 1, 1, 1, 2});
    EXPECT_THAT(counts.at_loop, ElementsAre(3, 2));
    EXPECT_EQ(counts.agreed, 4);
    EXPECT_DOUBLE_EQ(counts.mean_loops(), 1.4);
    EXPECT_DOUBLE_EQ(counts.agreement(), 0.8);
}

TEST(ExitTrace, TheOracleExitsAsSoonAsItAgrees) {
    ExitTrace trace{.loops = 3};
    for (const int32_t best : {7, 8, 7, /**/ 7, 7, 7, /**/ 6, 7, 7, /**/ 5, 6, 7})
        trace.outcomes.push_back({best, 0, 0});
    // The paper's oracle ignores the loops between the exit and the last loop.
    EXPECT_THAT(oracle_exits(trace), ElementsAre(1, 1, 2, 3));
    EXPECT_EQ(count_exits(trace, oracle_exits(trace)).agreement(), 1);
}

TEST(ExitTrace, ThresholdsByHand) {
    const auto of = [](double agreement) { return thresholds_for(kFive, ExitRule::margin, agreement); };
    EXPECT_THAT(of(1), ElementsAre(0.8));
    EXPECT_THAT(of(0.81), ElementsAre(0.8));
    EXPECT_THAT(of(0.8), ElementsAre(0.6));  // 0.9, 0.8, 0.7 and 0.6 exit, and 0.7 is wrong
    EXPECT_THAT(of(0.6), ElementsAre(0.5));
    EXPECT_THAT(of(0.01), ElementsAre(0.5));
    // The tokens with the lowest entropy come first, and the first one disagrees.
    EXPECT_THAT(thresholds_for(kFive, ExitRule::entropy, 1), ElementsAre(0));
    EXPECT_THAT(thresholds_for(kFive, ExitRule::entropy, 0.8), ElementsAre(0.6));
    EXPECT_TRUE(thresholds_for(kFive, ExitRule::fixed, 0.8).empty());
}

TEST(ExitTrace, EquallyConfidentTokensExitTogether) {
    const ExitTrace trace = two_loops({{0.9, true}, {0.5, true}, {0.5, false}, {0.5, true}});
    EXPECT_THAT(thresholds_for(trace, ExitRule::probability, 1), ElementsAre(0.9));
    EXPECT_THAT(thresholds_for(trace, ExitRule::probability, 0.75), ElementsAre(0.5));
}

// Confidence correlates with agreement, but imperfectly.
ExitTrace random_trace(int32_t loops, ExitRule rule, uint32_t seed) {
    std::mt19937 random(seed);
    const auto part = [&] { return static_cast<double>(random() % 1000) / 1000; };
    ExitTrace trace{.loops = loops};
    for (int i = 0; i < 500; ++i) {
        for (int32_t loop = 1; loop <= loops; ++loop) {
            const double confidence = part();
            const bool agrees = loop == loops || part() < confidence + 0.1 * loop;
            trace.outcomes.push_back(
                {agrees ? 1 : 0, 1, rule == ExitRule::entropy ? 5 * (1 - confidence) : confidence});
        }
    }
    return trace;
}

TEST(ExitTrace, WantedAgreementIsReachedAndMonotone) {
    for (const ExitRule rule : {ExitRule::probability, ExitRule::entropy}) {
        for (const int32_t loops : {2, 4}) {
            const ExitTrace trace = random_trace(loops, rule, 3);
            const double stricter = rule == ExitRule::entropy ? -1 : 1;
            ExitPolicy policy{.rule = rule};
            std::vector<double> before;
            double mean_before = 0;
            for (const double agreement : {0.5, 0.8, 0.9, 0.95, 0.97, 0.99, 1.0}) {
                policy.thresholds = thresholds_for(trace, rule, agreement);
                ASSERT_EQ(policy.thresholds.size(), static_cast<size_t>(loops - 1));
                check_exit_policy(policy, loops);
                const ExitCounts counts = count_exits(trace, exits_of(trace, policy));
                EXPECT_GE(counts.agreement(), agreement);
                if (agreement >= 0.8 && agreement < 1) {
                    EXPECT_LT(counts.agreement(), agreement + 0.01);
                }
                for (size_t i = 0; i < before.size(); ++i)
                    EXPECT_GE(stricter * policy.thresholds[i], stricter * before[i]);
                EXPECT_GE(counts.mean_loops(), mean_before);
                before = policy.thresholds;
                mean_before = counts.mean_loops();
            }
            EXPECT_LE(mean_before, loops);
        }
    }
}

TEST(ExitTrace, AgreementOutOfRange) {
    for (const double agreement : {0.0, -1.0, 1.1, std::nan("")}) {
        EXPECT_THAT(error_of([&] { thresholds_for(kFive, ExitRule::margin, agreement); }, ErrorCode::usage),
                    HasSubstr("at most 1"));
    }
}

}  // namespace
}  // namespace refold
