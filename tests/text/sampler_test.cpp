#include "text/sampler.h"

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
    for (int i = 0; i < draws; ++i) ++out[static_cast<size_t>(sampler.choose(logits))];
    return out;
}

TEST(Sampler, GreedyAndTopOneAreTheMaximum) {
    Sampler greedy({}), top_one({.temperature = 1.5F, .top_k = 1, .top_p = 1, .seed = 3});
    for (uint32_t seed = 0; seed < 20; ++seed) {
        const auto logits = random_logits(1 + 997 * seed, seed);
        EXPECT_EQ(greedy.choose(logits), argmax(logits));
        EXPECT_EQ(top_one.choose(logits), argmax(logits));
    }
}

TEST(Sampler, SeedDecides) {
    const auto logits = random_logits(500, 1);
    const auto run = [&](uint32_t seed) {
        Sampler sampler({.temperature = 1, .top_k = 0, .top_p = 1, .seed = seed});
        std::vector<int32_t> out(50);
        for (auto& token : out) token = sampler.choose(logits);
        return out;
    };
    for (const uint32_t seed : {0U, 1U, std::numeric_limits<uint32_t>::max()})
        EXPECT_EQ(run(seed), run(seed)) << seed;
    EXPECT_NE(run(0), run(1));
    const auto tokens = run(0);
    EXPECT_GT(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 5U);
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
    EXPECT_NEAR(two[1], 2000 * 4 / 7, 150);
    // The smallest set that holds 0.65 is {0.4, 0.3}.
    const auto nucleus = counts({.temperature = 1, .top_k = 0, .top_p = 0.65F, .seed = 1}, logits, 2000);
    EXPECT_EQ(nucleus[0] + nucleus[2], 0);
    EXPECT_NEAR(nucleus[1], 2000 * 4 / 7, 150);
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
    EXPECT_THROW((void)Sampler({}).choose(broken), Error);
    EXPECT_THROW((void)Sampler({.temperature = 1}).choose(broken), Error);
    EXPECT_THROW((void)Sampler({}).choose({}), Error);
}

}  // namespace
}  // namespace refold
