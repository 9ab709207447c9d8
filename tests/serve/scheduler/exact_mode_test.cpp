// Exact mode samples the full model's tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "generation/sampler.h"
#include "serve/scheduler.h"
#include "serve/single_stream.h"

namespace refold {
namespace {

// Upper 0.001 point of chi-square, by Wilson and Hilferty.
double critical(double freedom) {
    const double spread = 2 / (9 * freedom);
    return freedom * std::pow(1 - spread + 3.09 * std::sqrt(spread), 3);
}

// Chi-square of counts against expected counts; small expected counts are merged.
void expect_distribution(const std::map<std::vector<int32_t>, double>& expected,
                         const std::map<std::vector<int32_t>, int64_t>& seen, int64_t draws) {
    double chi_square = 0, rest_expected = 0, total = 0;
    int64_t classes = 0, rest_seen = draws;
    for (const auto& [outcome, probability] : expected) {
        total += probability;
        const double mean = probability * static_cast<double>(draws);
        if (mean < 10) {
            rest_expected += mean;
            continue;
        }
        const auto found = seen.find(outcome);
        const int64_t count = found == seen.end() ? 0 : found->second;
        chi_square += (static_cast<double>(count) - mean) * (static_cast<double>(count) - mean) / mean;
        rest_seen -= count;
        ++classes;
    }
    EXPECT_NEAR(total, 1, 1e-4);
    const double difference = static_cast<double>(rest_seen) - rest_expected;
    if (rest_expected >= 10) {
        chi_square += difference * difference / rest_expected;
        ++classes;
    } else {
        EXPECT_LT(difference, 30);
    }
    ASSERT_GT(classes, 5);
    EXPECT_LT(chi_square, critical(static_cast<double>(classes - 1)));
    for (const auto& [outcome, count] : seen) EXPECT_TRUE(expected.contains(outcome));
}

// The full model's probabilities of all continuations of `tokens` tokens.
void enumerate(FakeEngine& engine, const GenerationRequest& request, size_t tokens,
               std::vector<int32_t>& outcome, double probability,
               std::map<std::vector<int32_t>, double>& out) {
    if (outcome.size() == tokens) {
        out[outcome] += probability;
        return;
    }
    const int32_t id = *engine.open(50);
    std::vector<int32_t> all = request.prompt;
    all.insert(all.end(), outcome.begin(), outcome.end());
    std::vector<float> logits;
    for (int32_t loop = 0; loop < engine.capabilities().loops; ++loop) {
        std::vector<Row> rows(all.size());
        for (size_t i = 0; i < all.size(); ++i) {
            rows[i].sequence = id;
            rows[i].position = static_cast<int64_t>(i);
            rows[i].loop = loop;
            if (loop == 0) rows[i].token = all[i];
        }
        rows.back().logits = true;
        const auto got = engine.step({.rows = rows}).logits;
        logits.assign(got.begin(), got.end());
    }
    engine.close(id);
    Sampler sampler(request.sampling);
    for (const auto& [token, p] : sampler.probabilities(logits, all)) {
        outcome.push_back(token);
        enumerate(engine, request, tokens, outcome, probability * p, out);
        outcome.pop_back();
    }
}

void check_distribution(const SamplingOptions& sampling, int64_t draft, int32_t draft_loop) {
    const FakeEngineOptions tiny{.loops = 3, .n_vocab = 6, .kv_tokens = 1000, .common = 1.5F, .own = 1};
    GenerationRequest request;
    request.prompt = {1, 2, 3};
    request.max_tokens = 4;
    request.ignore_eos = true;
    request.sampling = sampling;
    std::map<std::vector<int32_t>, double> expected;
    {
        FakeEngine engine(tiny);
        std::vector<int32_t> outcome;
        enumerate(engine, request, 4, outcome, 1, expected);
    }
    FakeEngine engine(tiny);
    Scheduler scheduler(
        engine, test_tokenizer(),
        {.slots = 16, .queue = 100, .draft = draft, .draft_loop = draft_loop, .draft_always = true});
    constexpr int64_t kDraws = 12'000;
    std::map<std::vector<int32_t>, int64_t> seen;
    std::deque<std::unique_ptr<Generation>> waiting;
    for (int64_t i = 0; i < kDraws; ++i) {
        request.sampling.seed = static_cast<uint32_t>(i);
        while (waiting.size() >= 60 || (i + 1 == kDraws && !waiting.empty())) {
            ++seen[collect(*waiting.front()).tokens];
            waiting.pop_front();
        }
        waiting.push_back(scheduler.submit(request));
    }
    ++seen[collect(*waiting.front()).tokens];
    expect_distribution(expected, seen, kDraws);
    const SchedulerStatus status = scheduler.status();
    EXPECT_GT(status.accepted, status.drafted / 4);
    EXPECT_LT(status.accepted, status.drafted);
}

TEST(ExactMode, SamplesAsTheFullModel) {
    check_distribution({.temperature = 1, .top_k = 0, .top_p = 1}, 3, 1);
}

TEST(ExactMode, SamplesAsTheFullModelAmongTheLikeliest) {
    check_distribution({.temperature = 0.8F, .top_k = 4, .top_p = 0.9F}, 2, 2);
}

TEST(ExactMode, SamplesAsTheFullModelWithPenalties) {
    check_distribution({.temperature = 1,
                        .top_k = 0,
                        .top_p = 1,
                        .penalty_last_n = 5,
                        .repetition_penalty = 1.4,
                        .presence_penalty = 0.4,
                        .frequency_penalty = -0.3,
                        .logit_bias = {{2, 0.5}}},
                       3, 1);
}

TEST(ExactMode, TheSeedDecides) {
    FakeEngine engine({.loops = 2});
    Scheduler scheduler(engine, test_tokenizer(), {.draft = 4, .draft_always = true});
    GenerationRequest request;
    request.prompt = {1, 2};
    request.max_tokens = 20;
    request.ignore_eos = true;
    request.sampling = {.temperature = 1, .seed = 5};
    const Response first = collect(*scheduler.submit(request)), second = collect(*scheduler.submit(request));
    EXPECT_EQ(first.tokens, second.tokens);
    request.sampling.seed = 6;
    EXPECT_NE(collect(*scheduler.submit(request)).tokens, first.tokens);
}

// With the same seed the tokens are those of a run without drafts.
TEST(ExactMode, SamplesTheSameTokensAsWithoutDrafts) {
    const auto run = [](int64_t draft, const SamplingOptions& sampling) {
        FakeEngine engine({.loops = 3, .common = 2, .own = 1});
        Scheduler scheduler(engine, test_tokenizer(),
                            {.draft = draft, .draft_loop = 1, .draft_always = true});
        std::vector<std::vector<int32_t>> tokens;
        for (int32_t i = 0; i < 12; ++i) {
            GenerationRequest request;
            request.prompt = {1, 2, 3 + i};
            request.max_tokens = 40;
            request.ignore_eos = true;
            request.sampling = sampling;
            request.seed = (uint64_t{1} << 40) + static_cast<uint64_t>(i);
            tokens.push_back(collect(*scheduler.submit(request)).tokens);
        }
        const SchedulerStatus status = scheduler.status();
        EXPECT_EQ(status.accepted > 0 && status.accepted<status.drafted, draft> 0);
        return tokens;
    };
    for (const SamplingOptions& sampling :
         {SamplingOptions{.temperature = 1, .top_k = 0, .top_p = 1},
          SamplingOptions{.temperature = 0.7, .top_k = 20, .top_p = 0.9, .min_p = 0.02},
          SamplingOptions{.temperature = 1, .repetition_penalty = 1.3, .frequency_penalty = 0.5}}) {
        const auto without = run(0, sampling);
        for (const int64_t draft : {1, 4, 8}) EXPECT_EQ(run(draft, sampling), without) << draft;
    }
}

// If loops agree, all drafts are accepted, and later loops verify while early ones draft.
TEST(ExactMode, LoopsWorkOnTokensOneAfterTheOther) {
    FakeEngine engine({.loops = 4, .own = 0});
    Scheduler scheduler(engine, test_tokenizer(), {.draft = 4, .draft_always = true});
    GenerationRequest request;
    request.prompt = {1, 2};
    request.max_tokens = 21;
    request.ignore_eos = true;
    EXPECT_EQ(collect(*scheduler.submit(request)).tokens.size(), 21U);
    const SchedulerStatus status = scheduler.status();
    // All but the first and the last one. A token comes with every step once all loops have one of their own.
    EXPECT_EQ(status.drafted, 19U);
    EXPECT_EQ(status.accepted, 19U);
    EXPECT_EQ(status.steps, 4U + 3 + 20);
}

}  // namespace
}  // namespace refold
