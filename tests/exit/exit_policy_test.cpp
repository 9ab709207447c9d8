#include "exit/exit_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/error_of.h"

namespace refold {
namespace {

using testing::HasSubstr;

std::vector<float> logs(const std::vector<double>& probabilities) {
    std::vector<float> out;
    for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p) + 3));
    return out;
}

TEST(ExitPolicy, MeasuresByHand) {
    const auto logits = logs({0.125, 0.5, 0.125, 0.25});
    EXPECT_NEAR(exit_confidence(ExitRule::probability, logits), 0.5, 1e-6);
    EXPECT_NEAR(exit_confidence(ExitRule::margin, logits), 0.25, 1e-6);
    EXPECT_NEAR(exit_confidence(ExitRule::entropy, logits), 1.75 * std::log(2), 1e-6);
    EXPECT_EQ(exit_confidence(ExitRule::fixed, logits), 0);
    EXPECT_EQ(exit_confidence(ExitRule::none, logits), 0);
    const LogitMeasures m = measure_logits(logits);
    EXPECT_EQ(m.best, 1);
    EXPECT_NEAR(m.log_sum_exp, 3, 1e-6);
}

TEST(ExitPolicy, OneTokenIsCertain) {
    const std::vector<float> one{-4};
    EXPECT_EQ(exit_confidence(ExitRule::probability, one), 1);
    EXPECT_EQ(exit_confidence(ExitRule::margin, one), 1);
    EXPECT_EQ(exit_confidence(ExitRule::entropy, one), 0);
}

// The reference, in float64 and three passes.
LogitMeasures reference_measures(const std::vector<float>& logits) {
    LogitMeasures m;
    m.best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    m.largest = logits[static_cast<size_t>(m.best)];
    m.second = -std::numeric_limits<float>::infinity();
    double sum = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
        if (i != static_cast<size_t>(m.best)) m.second = std::max(m.second, logits[i]);
        sum += std::exp(static_cast<double>(logits[i]) - m.largest);
    }
    m.log_sum_exp = m.largest + std::log(sum);
    for (const float x : logits) {
        const double p = std::exp(x - m.log_sum_exp);
        if (p > 0) m.entropy -= p * (x - m.log_sum_exp);
    }
    return m;
}

TEST(ExitPolicy, MeasuresOfEveryLength) {
    std::mt19937 random(5);
    for (const size_t size : {2, 3, 15, 16, 17, 1000, 4096, 4097, 12291, 49152}) {
        for (const float spread : {0.01F, 3.0F, 40.0F}) {
            std::vector<float> logits(size);
            for (float& x : logits) x = spread * (static_cast<float>(random() % 20001) / 10000 - 1) - 20;
            const LogitMeasures m = measure_logits(logits), expected = reference_measures(logits);
            EXPECT_EQ(m.best, expected.best);
            EXPECT_EQ(m.largest, expected.largest);
            EXPECT_EQ(m.second, expected.second);
            EXPECT_NEAR(m.log_sum_exp, expected.log_sum_exp, 1e-6);
            EXPECT_NEAR(m.entropy, expected.entropy, 1e-5);
            EXPECT_NEAR(m.probability(), expected.probability(), 1e-6);
            EXPECT_NEAR(m.margin(), expected.margin(), 1e-6);
        }
    }
}

TEST(ExitPolicy, TokensThatCannotBe) {
    std::vector<float> logits(9000, -std::numeric_limits<float>::infinity());
    logits[8000] = 2;
    logits[8500] = 1;
    const LogitMeasures m = measure_logits(logits);
    EXPECT_EQ(m.best, 8000);
    EXPECT_NEAR(m.probability(), 1 / (1 + std::exp(-1.0)), 1e-6);
    EXPECT_NEAR(m.entropy, reference_measures(logits).entropy, 1e-5);
}

TEST(ExitPolicy, TheFirstOfEqualsIsTheBest) {
    std::vector<float> logits(9000, 0);
    for (const size_t i : {100, 101, 5000}) logits[i] = 7;
    EXPECT_EQ(measure_logits(logits).best, 100);
    EXPECT_EQ(exit_confidence(ExitRule::margin, logits), 0);
}

TEST(ExitPolicy, ExitsByThresholdOfTheLoop) {
    const auto logits = logs({0.5, 0.25, 0.25});
    ExitPolicy policy{.rule = ExitRule::probability, .thresholds = {0.6, 0.4}};
    EXPECT_FALSE(policy.exits(1, logits));
    EXPECT_TRUE(policy.exits(2, logits));
    policy.thresholds = {0.4};
    EXPECT_TRUE(policy.exits(1, logits));
    policy = {.rule = ExitRule::margin, .thresholds = {0.3, 0.2}};
    EXPECT_FALSE(policy.exits(1, logits));
    EXPECT_TRUE(policy.exits(2, logits));
    policy = {.rule = ExitRule::entropy, .thresholds = {1.0, 1.1}};
    EXPECT_FALSE(policy.exits(1, logits));
    EXPECT_TRUE(policy.exits(2, logits));
    policy = {.rule = ExitRule::fixed, .loop = 2};
    EXPECT_FALSE(policy.exits(1, logits));
    EXPECT_TRUE(policy.exits(2, logits));
    policy = {};
    EXPECT_FALSE(policy.exits(1, logits));
}

TEST(ExitPolicy, NamesAreReadBack) {
    for (const ExitRule rule :
         {ExitRule::none, ExitRule::fixed, ExitRule::probability, ExitRule::margin, ExitRule::entropy})
        EXPECT_EQ(exit_rule_from_name(exit_rule_name(rule)), rule);
    for (const ExitedKv kv : {ExitedKv::propagate, ExitedKv::catch_up, ExitedKv::share})
        EXPECT_EQ(exited_kv_from_name(exited_kv_name(kv)), kv);
    EXPECT_THAT(error_of([] { exit_rule_from_name("entrop"); }, ErrorCode::usage),
                HasSubstr("'entrop' - did you mean 'entropy'?"));
    EXPECT_THAT(error_of([] { exited_kv_from_name("catch_up"); }, ErrorCode::usage), HasSubstr("catch-up"));
}

TEST(ExitPolicy, WhatDoesNotFitIsRefused) {
    const auto refused = [](const ExitPolicy& policy, int64_t loops, const char* part) {
        EXPECT_THAT(error_of([&] { check_exit_policy(policy, loops); }, ErrorCode::usage), HasSubstr(part));
    };
    const ExitPolicy probability{.rule = ExitRule::probability, .thresholds = {0.9}};
    refused(probability, 1, "no loops to exit from");
    refused({.rule = ExitRule::fixed, .loop = 4}, 3, "loop 4 of a model of 3 loops, expected 1 to 3");
    refused({.rule = ExitRule::fixed}, 3, "loop 0");
    refused({.rule = ExitRule::margin}, 3, "margin needs a threshold");
    refused({.rule = ExitRule::margin, .thresholds = {0.1, 0.2, 0.3}}, 3,
            "3 thresholds for a model of 3 loops");
    refused({.rule = ExitRule::margin, .thresholds = {0.1, 1.2}}, 3,
            "threshold 1.2 of margin, expected 0 to 1");
    refused({.rule = ExitRule::entropy, .thresholds = {-1}}, 3, "threshold -1 of entropy");
    refused({.rule = ExitRule::entropy, .thresholds = {std::nan("")}}, 3, "nan");
    refused({.rule = ExitRule::margin, .loop = 1, .thresholds = {0.1}}, 3, "belongs to the rule fixed");
    refused({.rule = ExitRule::fixed, .loop = 1, .thresholds = {0.1}}, 3, "a threshold belongs to");
    refused({.thresholds = {0.1}}, 3, "got none");
    check_exit_policy({}, 1);
    check_exit_policy(probability, 2);
    check_exit_policy({.rule = ExitRule::fixed, .loop = 3}, 3);
    check_exit_policy({.rule = ExitRule::entropy, .thresholds = {0, 7.5}}, 3);
}

}  // namespace
}  // namespace refold
