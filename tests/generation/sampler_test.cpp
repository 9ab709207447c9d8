#include "generation/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "core/error.h"

namespace refold {
namespace {

std::vector<float> random_logits(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> logits(count);
    for (float& logit : logits) logit = normal(random);
    return logits;
}

int32_t argmax(const std::vector<float>& logits) {
    return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

std::vector<int> counts(const SamplingOptions& options, const std::vector<float>& logits, int draws) {
    Sampler sampler(options);
    std::vector<int> out(logits.size());
    for (int i = 0; i < draws; ++i) ++out[static_cast<size_t>(sampler.choose(logits, {options.seed, i}))];
    return out;
}

TEST(Sampler, GreedyAndTopOneAreTheMaximum) {
    Sampler greedy({}), top_one({.temperature = 1.5F, .top_k = 1, .top_p = 1, .seed = 3});
    for (uint32_t seed = 0; seed < 20; ++seed) {
        const auto logits = random_logits(1 + 997 * seed, seed);
        EXPECT_EQ(greedy.choose(logits, {}), argmax(logits));
        EXPECT_EQ(top_one.choose(logits, {3, 0}), argmax(logits));
    }
}

TEST(Sampler, SeedDecides) {
    const auto logits = random_logits(500, 1);
    Sampler sampler({.temperature = 1, .top_k = 0, .top_p = 1});
    const auto run = [&](uint64_t seed) {
        std::vector<int32_t> out;
        for (int64_t position = 0; position < 50; ++position)
            out.push_back(sampler.choose(logits, {seed, position}));
        return out;
    };
    // Nothing but the place decides, whatever was drawn before.
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, std::numeric_limits<uint64_t>::max()})
        EXPECT_EQ(run(seed), run(seed)) << seed;
    EXPECT_EQ(sampler.choose(logits, {1, 30}), run(1)[30]);
    EXPECT_NE(run(0), run(1));
    EXPECT_NE(run(1), run(1 + (uint64_t{1} << 32)));  // all bits of the seed count
    // The numbers of the next seed are not those of the next position.
    const auto first = run(0), second = run(1);
    EXPECT_FALSE(std::equal(first.begin() + 1, first.end(), second.begin()));
    const auto tokens = run(0);
    EXPECT_GT(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 5U);
}

// Why drafts are accepted: distributions that differ little give the same token at nearly every place.
TEST(Sampler, SimilarDistributionsDrawTheSame) {
    auto logits = random_logits(500, 1);
    Sampler sampler({.temperature = 1, .top_k = 0, .top_p = 1});
    std::vector<int32_t> before;
    for (int64_t i = 0; i < 2000; ++i) before.push_back(sampler.choose(logits, {7, i}));
    std::mt19937 random(3);
    for (float& logit : logits) logit += std::normal_distribution<float>(0, 0.05F)(random);
    int same = 0;
    for (int64_t i = 0; i < 2000; ++i)
        same += sampler.choose(logits, {7, i}) == before[static_cast<size_t>(i)] ? 1 : 0;
    EXPECT_GT(same, 1800);
    EXPECT_LT(same, 2000);
}

TEST(Sampler, TemperatureGivesTheSoftmax) {
    const std::vector<float> logits{0, 1, 2, 3, 1.5F, -1, 2.5F, 0.5F};
    constexpr float kTemperature = 0.8F;
    constexpr int kDraws = 20'000;
    std::vector<double> expected;
    for (const float logit : logits) expected.push_back(std::exp(static_cast<double>(logit / kTemperature)));
    const double sum = std::accumulate(expected.begin(), expected.end(), 0.0);

    const auto seen =
        counts({.temperature = kTemperature, .top_k = 0, .top_p = 1, .seed = 7}, logits, kDraws);
    double chi_square = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
        const double mean = kDraws * expected[i] / sum;
        chi_square += (seen[i] - mean) * (seen[i] - mean) / mean;
    }
    EXPECT_LT(chi_square, 24.3);  // 7 degrees of freedom: exceeded with probability 0.001
}

TEST(Sampler, ProbabilitiesAreThoseOfItsChoices) {
    const auto logits = random_logits(30, 2);
    constexpr int kDraws = 20'000;
    for (const SamplingOptions& options :
         {SamplingOptions{.temperature = 1.3F, .top_k = 0, .top_p = 1, .seed = 4},
          SamplingOptions{.temperature = 0.9F, .top_k = 8, .top_p = 0.9F, .seed = 5}}) {
        const auto seen = counts(options, logits, kDraws);
        const auto expected = Sampler(options).probabilities(logits);
        double sum = 0, chi_square = 0;
        int drawn = 0;
        for (const auto& [token, probability] : expected) {
            const double mean = kDraws * probability, count = seen[static_cast<size_t>(token)];
            chi_square += (count - mean) * (count - mean) / mean;
            sum += probability;
            drawn += seen[static_cast<size_t>(token)];
        }
        EXPECT_NEAR(sum, 1, 1e-9);
        EXPECT_EQ(drawn, kDraws);
        EXPECT_LT(chi_square, 58.3);  // 29 degrees of freedom: exceeded with probability 0.001
    }
    const auto greedy = Sampler({}).probabilities(logits);
    ASSERT_EQ(greedy.size(), 1U);
    EXPECT_EQ(greedy[0].token, argmax(logits));
}

TEST(Sampler, TopKAndTopPKeepTheLikeliest) {
    // Probabilities 0.4, 0.3, 0.2, 0.1.
    const std::vector<float> logits{std::log(0.1F), std::log(0.4F), std::log(0.2F), std::log(0.3F)};
    const auto two = counts({.temperature = 1, .top_k = 2, .top_p = 1, .seed = 1}, logits, 2000);
    EXPECT_EQ(two[0] + two[2], 0);
    EXPECT_NEAR(two[1], 2000 * 4 / 7.0, 150);
    // The smallest set that holds 0.65 is {0.4, 0.3}.
    const auto nucleus = counts({.temperature = 1, .top_k = 0, .top_p = 0.65F, .seed = 1}, logits, 2000);
    EXPECT_EQ(nucleus[0] + nucleus[2], 0);
    EXPECT_NEAR(nucleus[1], 2000 * 4 / 7.0, 150);
}

TEST(Sampler, MinPKeepsWhatIsLikelyEnough) {
    // Probabilities 0.4, 0.3, 0.2, 0.1: at least 0.6 of the largest are 0.4 and 0.3.
    const std::vector<float> logits{std::log(0.1F), std::log(0.4F), std::log(0.2F), std::log(0.3F)};
    const auto seen =
        counts({.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0.6, .seed = 1}, logits, 2000);
    EXPECT_EQ(seen[0] + seen[2], 0);
    EXPECT_NEAR(seen[1], 2000 * 4 / 7.0, 150);
}

TEST(Sampler, TypicalPKeepsWhatIsAsUnlikelyAsExpected) {
    // Probabilities 0.5, 0.25, 0.15, 0.1: an entropy of 1.21 nats, from which the second (1.39) is closest,
    // then the first (0.69), then the third (1.90).
    const std::vector<float> logits{std::log(0.5F), std::log(0.25F), std::log(0.15F), std::log(0.1F)};
    const auto left = [&](double typical_p) {
        std::set<int32_t> tokens;
        for (const auto& [token, p] :
             Sampler({.temperature = 1, .top_k = 0, .top_p = 1, .typical_p = typical_p})
                 .probabilities(logits))
            tokens.insert(token);
        return tokens;
    };
    EXPECT_EQ(left(0.2), (std::set<int32_t>{1}));
    EXPECT_EQ(left(0.5), (std::set<int32_t>{0, 1}));
    EXPECT_EQ(left(0.8), (std::set<int32_t>{0, 1, 2}));
    EXPECT_EQ(left(1), (std::set<int32_t>{0, 1, 2, 3}));
}

// exp(logit) as probabilities() weighs it, relative to token 0, which no penalty and no bias touches.
std::vector<double> relative_logits(const SamplingOptions& options, const std::vector<float>& logits,
                                    const std::vector<int32_t>& history) {
    std::vector<double> out(logits.size(), -std::numeric_limits<double>::infinity());
    for (const auto& [token, p] : Sampler(options).probabilities(logits, history))
        out[static_cast<size_t>(token)] = std::log(p);
    const double first = out[0];
    for (double& logit : out) logit += static_cast<double>(logits[0]) - first;
    return out;
}

void expect_logits(const SamplingOptions& options, const std::vector<int32_t>& history,
                   const std::vector<double>& expected) {
    const std::vector<float> logits{0.5F, 2, -1, 1, 0};
    SamplingOptions all = options;
    all.temperature = 1;
    all.top_k = 0;
    all.top_p = 1;
    const auto got = relative_logits(all, logits, history);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5) << "token " << i;
}

TEST(Sampler, PenaltiesByHand) {
    const std::vector<int32_t> history{1, 2, 1, 3, 1};
    // Positive logits are divided, others multiplied.
    expect_logits({.repetition_penalty = 2}, history, {0.5, 1, -2, 0.5, 0});
    expect_logits({.presence_penalty = 0.5}, history, {0.5, 1.5, -1.5, 0.5, 0});
    expect_logits({.frequency_penalty = 0.5}, history, {0.5, 0.5, -1.5, 0.5, 0});
    expect_logits({.repetition_penalty = 2, .presence_penalty = -1, .frequency_penalty = 0.25}, history,
                  {0.5, 1.25, -1.25, 1.25, 0});
    // The latest two tokens are 3 and 1.
    expect_logits({.penalty_last_n = 2, .frequency_penalty = 0.5}, history, {0.5, 1.5, -1, 0.5, 0});
    expect_logits({.penalty_last_n = 0, .frequency_penalty = 0.5}, history, {0.5, 2, -1, 1, 0});
    std::vector<int32_t> longer(100, 4);
    longer[0] = 1;
    expect_logits({.presence_penalty = 1}, longer, {0.5, 2, -1, 1, -1});
    expect_logits({.penalty_last_n = -1, .presence_penalty = 1}, longer, {0.5, 1, -1, 1, -1});
}

TEST(Sampler, BiasComesBeforePenalties) {
    expect_logits({.logit_bias = {{2, 3}, {4, -1.5}}}, {}, {0.5, 2, 2, 1, -1.5});
    // -1 + 3 is positive, and so divided.
    expect_logits({.repetition_penalty = 2, .logit_bias = {{2, 3}}}, {2}, {0.5, 2, 1, 1, 0});
    const auto banned = relative_logits({.temperature = 1,
                                         .top_k = 0,
                                         .top_p = 1,
                                         .logit_bias = {{1, -std::numeric_limits<double>::infinity()}}},
                                        {0.5F, 2, -1}, {});
    EXPECT_EQ(banned[1], -std::numeric_limits<double>::infinity());
}

TEST(Sampler, GreedyChoiceAppliesPenaltiesAndBias) {
    const std::vector<float> logits{0.5F, 2, -1, 1.5F, 0};
    EXPECT_EQ(Sampler({.presence_penalty = 1}).choose(logits, {}, std::vector<int32_t>{1}), 3);
    EXPECT_EQ(Sampler({.presence_penalty = 1}).choose(logits, {}), 1);
    EXPECT_EQ(Sampler({.logit_bias = {{2, 10}}}).choose(logits, {}), 2);
    EXPECT_TRUE(Sampler({.presence_penalty = 1}).uses_history());
    EXPECT_FALSE(Sampler({.penalty_last_n = 0, .presence_penalty = 1}).uses_history());
    EXPECT_FALSE(Sampler({.logit_bias = {{2, 10}}}).uses_history());
}

TEST(Sampler, DrawsFollowThePenalizedProbabilities) {
    const auto logits = random_logits(30, 2);
    const SamplingOptions options{.temperature = 1.1,
                                  .top_k = 12,
                                  .top_p = 0.95,
                                  .min_p = 0.02,
                                  .repetition_penalty = 1.3,
                                  .presence_penalty = 0.5,
                                  .frequency_penalty = 0.5,
                                  .logit_bias = {{3, 2}},
                                  .seed = 9};
    const std::vector<int32_t> history{argmax(logits), 5, 6, 5};
    Sampler sampler(options);
    constexpr int kDraws = 20'000;
    std::vector<int> seen(logits.size());
    for (int i = 0; i < kDraws; ++i)
        ++seen[static_cast<size_t>(sampler.choose(logits, {options.seed, i}, history))];
    double chi_square = 0;
    int drawn = 0;
    for (const auto& [token, probability] : Sampler(options).probabilities(logits, history)) {
        const double mean = kDraws * probability, count = seen[static_cast<size_t>(token)];
        chi_square += (count - mean) * (count - mean) / mean;
        drawn += seen[static_cast<size_t>(token)];
    }
    EXPECT_EQ(drawn, kDraws);
    EXPECT_LT(chi_square, 31.3);  // 11 degrees of freedom: exceeded with probability 0.001
}

TEST(Sampler, OptionsOutOfRangeThrow) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    for (const SamplingOptions& bad :
         std::vector<SamplingOptions>{{.temperature = -0.1F},
                                      {.temperature = kNan},
                                      {.temperature = std::numeric_limits<float>::infinity()},
                                      {.top_k = -1},
                                      {.top_p = 0},
                                      {.top_p = 1.01F},
                                      {.top_p = kNan}}) {
        try {
            const Sampler sampler(bad);
            ADD_FAILURE() << "no error";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::usage) << error.what();
        }
    }
}

TEST(Sampler, LogitsThatAreNoNumbersThrow) {
    const std::vector<float> broken(10, std::numeric_limits<float>::quiet_NaN());
    EXPECT_THROW((void)Sampler({}).choose(broken, {}), Error);
    EXPECT_THROW((void)Sampler({.temperature = 1}).choose(broken, {}), Error);
    EXPECT_THROW((void)Sampler({}).choose({}, {}), Error);
}

}  // namespace
}  // namespace refold
