// Compared with libllama's Mirostat, which draws itself and keeps its bound to itself.
#include "generation/mirostat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "generation/sampler.h"

namespace refold {
namespace {

std::vector<float> random_logits(size_t count, uint32_t seed, float spread) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> logits(count);
    for (float& logit : logits) logit = normal(random);
    return logits;
}

std::vector<llama_token_data> as_candidates(const std::vector<float>& logits) {
    std::vector<llama_token_data> out;
    for (size_t i = 0; i < logits.size(); ++i) out.push_back({static_cast<llama_token>(i), logits[i], 0});
    return out;
}

std::set<llama_token> ids(std::span<const llama_token_data> candidates) {
    std::set<llama_token> out;
    for (const auto& one : candidates) out.insert(one.id);
    return out;
}

// Both keep the same tokens, step after step, when ours is told what libllama drew.
TEST(Mirostat, KeepsWhatLibllamaKeeps) {
    constexpr size_t kVocab = 1000;
    for (const int version : {1, 2}) {
        const MirostatOptions options{.version = version, .tau = 3, .eta = 0.3};
        const std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)> theirs(
            version == 1 ? llama_sampler_init_mirostat(kVocab, 5, 3, 0.3F, 100)
                         : llama_sampler_init_mirostat_v2(5, 3, 0.3F),
            llama_sampler_free);
        double bound = 2 * options.tau;
        std::set<size_t> sizes;
        for (uint32_t step = 0; step < 60; ++step) {
            const auto logits = random_logits(kVocab, step, 1 + static_cast<float>(step % 5));
            auto expected = as_candidates(logits), given = expected;
            llama_token_data_array array{expected.data(), expected.size(), -1, false};
            llama_sampler_apply(theirs.get(), &array);
            const auto left = mirostat_candidates(given, options, bound);
            EXPECT_EQ(ids(left), ids({array.data, array.size})) << version << " " << step;
            bound = mirostat_bound(left, array.data[array.selected].id, options, bound);
            sizes.insert(left.size());
        }
        EXPECT_GT(sizes.size(), 20U) << version;
    }
}

TEST(Mirostat, AtLeastOneTokenIsLeft) {
    for (const int version : {1, 2}) {
        for (const size_t count : {1U, 2U, 300U}) {
            auto candidates = as_candidates(random_logits(count, 3, 2));
            const auto likeliest = std::ranges::max_element(candidates, {}, &llama_token_data::logit)->id;
            const auto left = mirostat_candidates(candidates, {.version = version}, -50);
            ASSERT_EQ(left.size(), 1U);
            EXPECT_EQ(left[0].id, likeliest);
        }
        // Banned tokens, and logits that are all equal.
        std::vector<float> logits(40, -std::numeric_limits<float>::infinity());
        logits[7] = logits[9] = 1;
        auto banned = as_candidates(logits);
        EXPECT_TRUE(ids(mirostat_candidates(banned, {.version = version}, 10)).contains(7));
        auto equal = as_candidates(std::vector<float>(300, 1));
        EXPECT_FALSE(mirostat_candidates(equal, {.version = version}, 10).empty());
    }
}

double surprise_of(double temperature, const std::vector<float>& logits, int32_t token) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit / temperature);
    return (std::log(sum) - logits[static_cast<size_t>(token)] / temperature) / std::log(2.0);
}

// Mean surprise in bits; filters that Mirostat replaces do nothing.
double mean_surprise(int version, double tau) {
    constexpr int kFirst = 100, kSteps = 500;
    Sampler sampler({.temperature = 1.5, .top_k = 1, .mirostat = version, .mirostat_tau = tau});
    SamplerState state;
    double sum = 0;
    for (int64_t i = 0; i < kSteps; ++i) {
        const auto logits = random_logits(500, static_cast<uint32_t>(i), 4);
        const int32_t token = sampler.choose(logits, {1, i}, {}, &state);
        if (i >= kFirst) sum += surprise_of(1.5, logits, token);
    }
    return sum / (kSteps - kFirst);
}

TEST(Mirostat, ChosenTokensAreAsSurprisingAsAskedFor) {
    for (const int version : {1, 2}) {
        const double low = mean_surprise(version, 1), middle = mean_surprise(version, 4),
                     high = mean_surprise(version, 6);
        EXPECT_LT(low + 0.5, middle) << version;
        EXPECT_LT(middle + 0.5, high) << version;
    }
}

TEST(Mirostat, SequencesOfASamplerHaveTheirOwnBounds) {
    Sampler shared({.temperature = 1, .mirostat = 2}), alone({.temperature = 1, .mirostat = 2});
    SamplerState peaked, flat, only;
    for (int64_t i = 0; i < 50; ++i) {
        const auto logits = random_logits(300, static_cast<uint32_t>(i), 4);
        const int32_t token = shared.choose(logits, {1, i}, {}, &peaked);
        shared.choose(random_logits(300, 99, 0.5F), {1, i}, {}, &flat);
        EXPECT_EQ(alone.choose(logits, {1, i}, {}, &only), token);
    }
    EXPECT_NE(peaked.mirostat_bound, flat.mirostat_bound);
}

// A draft is chosen with a copy, which leaves no trace.
TEST(Mirostat, ACopyOfTheStateChoosesTheSame) {
    Sampler sampler({.temperature = 1, .mirostat = 2});
    SamplerState state;
    for (int64_t i = 0; i < 50; ++i) {
        const auto logits = random_logits(300, static_cast<uint32_t>(i), 2);
        SamplerState copy = state;
        const int32_t drafted = sampler.choose(logits, {1, i}, {}, &copy);
        sampler.choose(random_logits(300, 99, 2), {1, i}, {}, &copy);
        EXPECT_EQ(sampler.choose(logits, {1, i}, {}, &state), drafted);
    }
}

}  // namespace
}  // namespace refold
