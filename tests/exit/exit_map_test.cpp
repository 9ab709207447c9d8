// Exit maps solved in closed form, and the metric of their least squares problem.
#include <gmock/gmock.h>

#include <cmath>

#include "compress/calibrated.h"
#include "compress/compensation/next_token_metric.h"
#include "exit/exit_run.h"
#include "exit/log_softmax.h"
#include "model/export/nanbeige.h"
#include "model/materialize.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

constexpr int64_t kLength = 32;
using Floats = std::vector<float>;

Model looped(const std::string& fixture = "llama_gqa", int loops = 2) {
    Work work;
    return apply_method(fixture_model(fixture), "recursive", {fmt::format("loops={}", loops)}, work).model;
}

// ---- the metric ----

// The prediction from a residual stream, by the definition of final norm and head.
Floats prediction(const Model& model, std::span<const float> x) {
    const ModelConfig& c = model.config;
    const auto n = static_cast<double>(x.size());
    double mean = 0, squares = 0;
    if (c.norm == NormKind::layer)
        for (const float v : x) mean += static_cast<double>(v) / n;
    for (const float v : x) squares += std::pow(static_cast<double>(v) - mean, 2) / n;
    const auto global = [&](Slot slot) {
        const auto found = model.topology.globals.find(slot);
        return found == model.topology.globals.end() ? Floats() : materialize(model, found->second, slot);
    };
    const Floats gain = global(Slot::output_norm), bias = global(Slot::output_norm_bias),
                 head = global(Slot::output);
    Floats logits;
    for (size_t row = 0; row < head.size(); row += x.size()) {
        double sum = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            const double normed = (static_cast<double>(x[i]) - mean) /
                                      std::sqrt(squares + static_cast<double>(c.norm_eps)) *
                                      static_cast<double>(gain[i]) +
                                  (bias.empty() ? 0.0 : static_cast<double>(bias[i]));
            sum += normed * static_cast<double>(head[row + i]);
        }
        logits.push_back(c.logit_softcap > 0
                             ? c.logit_softcap * std::tanh(static_cast<float>(sum) / c.logit_softcap)
                             : static_cast<float>(sum));
    }
    return logits;
}

Floats noise(size_t count, uint32_t seed, float size) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, size);
    Floats out(count);
    for (float& x : out) x = normal(random);
    return out;
}

// For one token, half of the squared length is the divergence of predictions, if the difference does not
// change the scale that the norm divides by.
TEST(NextTokenMetric, IsTheDivergenceOfSmallDifferences) {
    for (const char* fixture : {"llama_gqa", "gpt2_hub"}) {
        const Model model = fixture_model(fixture);
        const auto n = static_cast<size_t>(model.config.n_embd);
        for (uint32_t seed = 1; seed <= 4; ++seed) {
            const Floats x = noise(n, seed, 2);
            NextTokenMetric metric(model);
            metric.add(x);
            metric.finish(1e-3);
            Floats d = noise(n, seed + 10, 0.01F);
            double along = 0, length = 0, mean = 0;
            for (size_t i = 0; i < n; ++i) mean += static_cast<double>(d[i]) / static_cast<double>(n);
            for (size_t i = 0; i < n; ++i) d[i] -= static_cast<float>(mean);
            for (size_t i = 0; i < n; ++i) {
                along += static_cast<double>(x[i]) * static_cast<double>(d[i]);
                length += static_cast<double>(x[i]) * static_cast<double>(x[i]);
            }
            for (size_t i = 0; i < n; ++i) d[i] -= static_cast<float>(along / length) * x[i];
            Floats moved = x;
            for (size_t i = 0; i < n; ++i) moved[i] += metric.scale(x) * d[i];
            double squares = 0;
            for (const float m : metric.measured(d))
                squares += static_cast<double>(m) * static_cast<double>(m);
            const double expected = kl_divergence(prediction(model, x), prediction(model, moved));
            EXPECT_NEAR(squares / 2, expected, 0.1 * expected + 1e-7) << fixture << " " << seed;
        }
    }
}

TEST(NextTokenMetric, UnmeasuredIsTheInverse) {
    const Model model = fixture_model("llama_gqa");
    const auto n = static_cast<size_t>(model.config.n_embd);
    NextTokenMetric metric(model);
    metric.add(noise(8 * n, 1, 2));
    metric.finish(1e-3);
    const Floats u = noise(3 * n, 2, 1);  // [n, 3]
    const Floats back = metric.measured(transposed(metric.unmeasured(u), static_cast<int64_t>(n), 3));
    EXPECT_LE(largest_difference(transposed(back, 3, static_cast<int64_t>(n)), u), 1e-2);
}

// ---- the maps ----

// The logits of a text after every loop.
std::vector<std::vector<Floats>> predictions(const Model& model, const std::vector<int32_t>& tokens) {
    const auto engine = make_engine(model, {.threads = 1, .context = kLength, .f32 = true, .by_loop = true});
    std::vector<std::vector<Floats>> out(static_cast<size_t>(model.topology.loops),
                                         std::vector<Floats>(tokens.size()));
    run_with_exits(*engine, ExitedKv::catch_up, {.sequence = engine->open(kLength).value(), .tokens = tokens},
                   [&](size_t token, int32_t loop, std::span<const float> logits) {
                       out[static_cast<size_t>(loop - 1)][token].assign(logits.begin(), logits.end());
                       return false;
                   });
    return out;
}

double mean_divergence(const std::vector<std::vector<Floats>>& loops, size_t loop) {
    double sum = 0;
    for (size_t t = 0; t < loops[loop].size(); ++t) sum += kl_divergence(loops.back()[t], loops[loop][t]);
    return sum / static_cast<double>(loops[loop].size());
}

TEST(ExitMap, BringsExitsNearTheLastLoopAndLeavesThatAlone) {
    // Layers that change little: the state after the first loop already gives most of the final prediction.
    const Model dense =
        small_model({.layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .vocab = 24},
                    [](size_t layer, Slot slot, int64_t row, int64_t column) {
                        return is_vector(slot) ? 1.0F : 0.2F * scattered(layer, slot, row, column);
                    });
    Work work;
    const Model model = apply_method(dense, "recursive", {"loops=2"}, work).model;
    const Compression made = calibrated(model, {"exit_map"}, random_text(model, 40, kLength));
    const auto text = random_tokens(kLength, model.config.n_vocab, 77);
    const auto before = predictions(model, text), after = predictions(made.model, text);
    EXPECT_EQ(after.back(), before.back());
    EXPECT_LT(mean_divergence(after, 0), 0.5 * mean_divergence(before, 0));
    const auto exits = details_of(made)["exits"];
    ASSERT_EQ(exits.size(), 1U);
    EXPECT_LT(exits[0]["held_out_after"], exits[0]["held_out_before"]);
    EXPECT_EQ(made.model.tensor("blk.1.exit.map.u").shape, (std::vector<int64_t>{4, 16}));
}

// On its calibration text a map of full rank is never worse than one of low rank.
TEST(ExitMap, EveryLoopButTheLastAndMoreRankIsBetter) {
    const Model model =
        looped("llama_gqa", static_cast<int>(fixture_model("llama_gqa").topology.layers.size()));
    const auto loops = static_cast<size_t>(model.topology.loops);
    ASSERT_GT(loops, 1U);
    const Calibration text = random_text(model, 40, kLength);
    const auto error = [&](const char* rank) {
        const auto details = details_of(calibrated(model, {fmt::format("exit_map rank={}", rank)}, text));
        std::vector<double> out;
        for (const auto& exit : details["exits"]) out.push_back(exit["fit_after"]);
        return out;
    };
    const auto few = error("2"), many = error("64");
    ASSERT_EQ(few.size(), loops - 1);
    for (size_t e = 0; e < few.size(); ++e) EXPECT_LT(many[e], few[e]);
}

TEST(ExitMap, WhatIsPlannedIsMadeAndWritten) {
    const Model model = looped();
    const Calibration text = random_text(model, 12, kLength);
    const Compression made = calibrated(model, {"exit_map rank=3"}, text);
    const Compression plan = planned(model, {"exit_map rank=3"});
    EXPECT_EQ(plan.model.topology, made.model.topology);
    EXPECT_EQ(account(plan.model).model.bytes, account(made.model).model.bytes);
    EXPECT_EQ(account(made.model).model.parameters, account(model).model.parameters + 2 * 3 * 64);
    EXPECT_EQ(account(made.model).model.flops_per_token, account(model).model.flops_per_token);
    const Model loaded = saved_and_loaded(made.model);
    EXPECT_EQ(outputs_of(loaded), outputs_of(model));
    // Solving again replaces the maps instead of stacking them.
    const Compression again = calibrated(made.model, {"exit_map rank=5"}, text);
    EXPECT_EQ(account(again.model).model.parameters, account(model).model.parameters + 2 * 5 * 64);
}

TEST(ExitMap, OtherProgramsGetTheModelWithout) {
    const Model model = looped();
    const Model made = calibrated(model, {"exit_map"}, random_text(model, 12, kLength)).model;
    EXPECT_EQ(outputs_of(without_sharing(made)), outputs_of(without_sharing(model)));
    EXPECT_EQ(looped_stock(made).loops, looped_stock(model).loops);
    EXPECT_GT(looped_stock(made).loops, 1);
}

TEST(ExitMap, WhatHasNoExitsIsRefused) {
    const auto refused = [](const Model& model, const std::string& step, const std::string& message) {
        EXPECT_THAT([&] { planned(model, {step}); },
                    testing::ThrowsMessage<Error>(testing::HasSubstr(message)))
            << message;
    };
    refused(fixture_model("llama_gqa"), "exit_map", "no loops");
    refused(looped(), "exit_map rank=65", "rank=65");
}

}  // namespace
}  // namespace refold
