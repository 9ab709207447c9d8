#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "engine/compare.h"
#include "eval/speed.h"
#include "exit/log_softmax.h"
#include "model/load.h"

namespace refold {
namespace {

const std::string kModel = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";

// The definition of perplexity, in double, one window at a time.
double reference(const Model& model, std::span<const int32_t> tokens, int64_t context, int64_t stride,
                 int64_t& scored) {
    double nll = 0;
    scored = 0;
    int64_t next = 1;  // first token that no window has scored
    for (int64_t first = 0; first + context <= static_cast<int64_t>(tokens.size()); first += stride) {
        const auto window = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(context));
        const auto logits = all_logits(model, window, {.threads = 1, .f32 = true});
        const auto n_vocab = static_cast<size_t>(model.config.n_vocab);
        for (int64_t t = std::max(first + 1, next); t < first + context; ++t) {
            const auto row = std::span(logits).subspan(static_cast<size_t>(t - first - 1) * n_vocab, n_vocab);
            double sum = 0;
            for (const float x : row) sum += std::exp(static_cast<double>(x));
            nll +=
                std::log(sum) - static_cast<double>(row[static_cast<size_t>(tokens[static_cast<size_t>(t)])]);
            ++scored;
        }
        next = first + context;
    }
    return std::exp(nll / static_cast<double>(scored));
}

TEST(Perplexity, FollowsTheDefinition) {
    const Model model = load_model(kModel);
    const auto tokens = random_tokens(230, model.config.n_vocab, 3);
    SingleSequence sequence(model, {.threads = 1, .context = 64, .f32 = true});
    for (const auto& [context, stride] :
         {std::pair<int64_t, int64_t>{64, 0}, {64, 64}, {64, 32}, {50, 7}, {2, 1}}) {
        int64_t scored = 0;
        const double expected = reference(model, tokens, context, stride == 0 ? context : stride, scored);
        const auto result = perplexity(sequence, tokens, {.context = context, .stride = stride});
        EXPECT_NEAR(result.perplexity / expected, 1.0, 1e-5) << context << " " << stride;
        EXPECT_EQ(result.tokens_scored, scored) << context << " " << stride;
    }
    EXPECT_EQ(perplexity(sequence, tokens, {.context = 64, .max_windows = 2}).windows, 2);
    EXPECT_EQ(perplexity(sequence, tokens, {.context = 64, .max_windows = 2}).tokens_scored, 126);
}

TEST(Perplexity, ShortTextIsOneWindow) {
    const Model model = load_model(kModel);
    SingleSequence sequence(model, {.threads = 1, .context = 64, .f32 = true});
    EXPECT_EQ(perplexity(sequence, random_tokens(10, model.config.n_vocab, 1), {.context = 64}).tokens_scored,
              9);
    EXPECT_THROW(perplexity(sequence, random_tokens(1, model.config.n_vocab, 1), {.context = 64}), Error);
}

TEST(Perplexity, OptionsOutOfRange) {
    const Model model = load_model(kModel);
    SingleSequence sequence(model, {.threads = 1, .context = 64});
    const auto tokens = random_tokens(100, model.config.n_vocab, 1);
    for (const PerplexityOptions& o :
         {PerplexityOptions{.context = 66}, PerplexityOptions{.context = 1},
          PerplexityOptions{.context = 64, .stride = 65}, PerplexityOptions{.context = 64, .stride = -1},
          PerplexityOptions{.context = 64, .max_windows = -1}}) {
        EXPECT_THROW(perplexity(sequence, tokens, o), Error);
    }
}

TEST(Perplexity, StandardErrorOfEqualLossesIsZero) {
    // Constant log likelihoods have no standard error; those of random tokens have one.
    const Model model = load_model(kModel);
    SingleSequence sequence(model, {.threads = 1, .context = 64, .f32 = true});
    EXPECT_GT(
        perplexity(sequence, random_tokens(64, model.config.n_vocab, 1), {.context = 64}).standard_error,
        0.0);
    EXPECT_EQ(perplexity(sequence, random_tokens(2, model.config.n_vocab, 1), {.context = 2}).standard_error,
              0.0);
}

TEST(LogSumExp, EqualsTheDoubleSum) {
    for (const size_t count : {1u, 3u, 16u, 17u, 5000u, 49152u}) {
        std::mt19937 random(static_cast<uint32_t>(count));
        std::normal_distribution<float> normal(0.0F, 10.0F);
        std::vector<float> x(count);
        for (auto& value : x) value = normal(random);
        double sum = 0;
        for (const float value : x) sum += std::exp(static_cast<double>(value));
        EXPECT_NEAR(log_sum_exp(x), std::log(sum), 1e-5) << count;
    }
    EXPECT_NEAR(log_sum_exp(std::vector<float>(100, 1e4F)), 1e4 + std::log(100.0), 1e-2);
}

TEST(Speed, RatiosAreOfTheSameRound) {
    const SpeedSeries a{{2, 20, 4}}, b{{1, 10, 8}};
    EXPECT_DOUBLE_EQ(ratio(a, b), 2.0);
    EXPECT_DOUBLE_EQ(a.median(), 4.0);
    EXPECT_DOUBLE_EQ((SpeedSeries{{1, 2, 3, 10}}).median(), 2.5);
}

TEST(Speed, EverySubjectRunsEveryRound) {
    std::vector<std::string> log;
    const auto make = [&](const std::string& name) {
        return SpeedSubject{name, [] {},
                            [&log, name](std::span<const int32_t> t) {
                                if (t.size() > 1) log.push_back(name);
                            },
                            [] {}};
    };
    const auto results = measure_speed({make("a"), make("b")}, 100, {.prefill = 4, .decode = 2, .rounds = 3});
    EXPECT_EQ(log, (std::vector<std::string>{"a", "b", "b", "a", "a", "b", "b", "a"}));
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].prefill.tokens_per_s.size(), 3u);
    EXPECT_GT(peak_resident_bytes(), resident_bytes() / 2);
}

}  // namespace
}  // namespace refold
