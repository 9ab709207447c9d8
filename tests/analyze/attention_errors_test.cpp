// Errors of shared attention and the depth factor, against their definitions in float64.
#include "analyze/attention_errors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "analyze/checks.h"
#include "compress/calibrated.h"
#include "engine/reference.h"

namespace refold {
namespace {

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;

const SmallShape kShape{.layers = 6, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .vocab = 24};
// The second is shorter.
const std::vector<std::vector<int32_t>> kText = {
    {1, 2, 3, 4, 5, 20, 7}, {5, 5, 1, 0, 2}, {7, 6, 3, 2, 1, 9, 9}};

Model dense() { return small_model(kShape, scattered_small); }

Model shared(const std::string& step) {
    const Model model = dense();
    return calibrated(model, {step}, random_text(model, 8, 24)).model;
}

Model without_w_c(Model model, size_t layer) {
    std::erase_if(model.topology.layers[layer], [](const auto& e) { return is_compensation(e.first); });
    return model;
}

Rows tapped(const Model& model, const std::vector<int32_t>& tokens, size_t layer, Tap tap) {
    return reference::run(model, {tokens, {}, {}}).taps.at({layer, tap});
}

double squares(const Vector& a) {
    double sum = 0;
    for (const double x : a) sum += x * x;
    return sum;
}

Vector difference(const Vector& a, const Vector& b) {
    Vector out;
    for (size_t i = 0; i < a.size(); ++i) out.push_back(a[i] - b[i]);
    return out;
}

ErrorSize error_of(const Model& original, const Model& model, size_t layer) {
    Rows sums(7, Vector(16));
    Vector counts(7);
    ErrorSize out;
    double tokens = 0;
    for (const auto& text : kText) {
        const Rows before = tapped(original, text, layer, Tap::residual),
                   now = tapped(model, text, layer, Tap::residual);
        for (size_t t = 0; t < text.size(); ++t) {
            const Vector e = difference(before[t], now[t]);
            for (size_t i = 0; i < e.size(); ++i) sums[t][i] += e[i];
            counts[t] += 1;
            out.of_tokens += squares(e);
            tokens += 1;
        }
    }
    for (size_t t = 0; t < sums.size(); ++t) out.of_means += squares(sums[t]) / (counts[t] * counts[t]);
    out.of_tokens /= tokens;
    return out;
}

void expect_near(const ErrorSize& got, const ErrorSize& expected) {
    EXPECT_NEAR(got.of_means, expected.of_means, 1e-4 * expected.of_means);
    EXPECT_NEAR(got.of_tokens, expected.of_tokens, 1e-4 * expected.of_tokens);
}

TEST(AttentionErrors, WithoutAndWithCompensation) {
    const Model original = dense();
    for (const char* step : {"uniattn superblocks=1-3 compensation=paper type=f32", "cla superblocks=1-3",
                             "llmdrop count=2 layers=2-3"}) {
        SCOPED_TRACE(step);
        const Model model = shared(step);
        const AttentionErrors got = attention_errors(original, model, kText, 1);
        EXPECT_EQ(got.positions, 7);
        ASSERT_EQ(got.layers.size(), 2U);
        ErrorSize without, with;
        for (const AttentionError& own : got.layers) {
            const ErrorSize bare = error_of(original, without_w_c(model, own.layer), own.layer),
                            whole = error_of(original, model, own.layer);
            expect_near(own.without, bare);
            EXPECT_EQ(own.with.has_value(), model.topology.has(own.layer, Slot::attn_comp));
            if (own.with) expect_near(*own.with, whole);
            without.of_means += bare.of_means / 2;
            without.of_tokens += bare.of_tokens / 2;
            with.of_means += whole.of_means / 2;
            with.of_tokens += whole.of_tokens / 2;
        }
        expect_near(got.without(), without);
        expect_near(got.with(), with);
        EXPECT_EQ(got.layers[0].source.has_value(), std::string(step).starts_with("ll") ? false : true);
    }
}

// What W_c is solved for is what is measured: with the text that it is solved with, little is left.
TEST(AttentionErrors, OfTheTextThatWasSolvedWith) {
    const Model original = dense();
    const Calibration text = random_text(original, 8, 24);
    auto sequences = text.fit;
    sequences.insert(sequences.end(), text.held_out.begin(), text.held_out.end());
    const AttentionErrors got = attention_errors(
        original, shared("uniattn superblocks=1-3 compensation=paper type=f32"), sequences, 1);
    for (const AttentionError& own : got.layers) EXPECT_LT(own.with->of_means, 0.8 * own.without.of_means);
}

// ---- depth ----

// Weights [out x in] times a vector.
Vector times(const Model& model, size_t layer, Slot slot, const Vector& x) {
    const auto w = materialize(model, model.topology.at(layer, slot), slot, layer);
    Vector out(w.size() / x.size());
    for (size_t i = 0; i < w.size(); ++i) out[i / x.size()] += static_cast<double>(w[i]) * x[i % x.size()];
    return out;
}

// The attention of `layer`, which weights its values with probabilities [heads][tokens][keys], on a residual
// stream.
Rows weighted_values(const Model& model, size_t layer, const std::vector<reference::Matrix>& probabilities,
                     const Rows& stream) {
    const auto gain = materialize(model, model.topology.at(layer, Slot::attn_norm), Slot::attn_norm, layer);
    Rows values;
    for (const Vector& x : stream) {
        Vector normed;
        for (size_t i = 0; i < x.size(); ++i)
            normed.push_back(x[i] / std::sqrt(squares(x) / 16 + 1e-5) * static_cast<double>(gain[i]));
        values.push_back(times(model, layer, Slot::attn_v, normed));
    }
    Rows out;
    for (size_t t = 0; t < stream.size(); ++t) {
        Vector inner(16);
        for (size_t head = 0; head < 4; ++head) {
            for (size_t key = 0; key <= t; ++key) {
                for (size_t i = 0; i < 4; ++i)
                    inner[head * 4 + i] += probabilities[head][t][key] * values[key][head / 2 * 4 + i];
            }
        }
        out.push_back(times(model, layer, Slot::attn_o, inner));
    }
    return out;
}

TEST(AttentionErrors, DepthOfUniAttn) {
    const Model model = shared("uniattn superblocks=1-3 compensation=lsq type=f32");
    const AttentionErrors got = attention_errors(dense(), model, kText, 1);
    double mean_size = 0, mean_effect = 0;
    for (const AttentionError& own : got.layers) {
        ASSERT_EQ(own.source, 1U);
        double ratios = 0, tokens = 0, changed = 0, all = 0;
        for (const auto& text : kText) {
            const reference::Output run = reference::run(model, {text, {}, {}});
            const Rows &x = run.taps.at({1, Tap::layer_input}),
                       &y = run.taps.at({own.layer, Tap::layer_input});
            const Rows before = weighted_values(model, own.layer, run.probabilities.at(1), x),
                       now = weighted_values(model, own.layer, run.probabilities.at(1), y);
            for (size_t t = 0; t < text.size(); ++t) {
                ratios += std::sqrt(squares(difference(y[t], x[t])) / squares(x[t]));
                changed += squares(difference(now[t], before[t]));
                all += squares(now[t]);
                tokens += 1;
            }
        }
        EXPECT_NEAR(own.depth.size, ratios / tokens, 1e-4);
        EXPECT_NEAR(own.depth.effect, std::sqrt(changed / all), 1e-4);
        mean_size += own.depth.size / 2;
        mean_effect += own.depth.effect / 2;
    }
    EXPECT_NEAR(got.depth().size, mean_size, 1e-9);
    EXPECT_NEAR(got.depth().effect, mean_effect, 1e-9);
}

// Proposition 3.3 in its extreme: where queries say nothing, cross-layer attention gives every layer the same
// weighted values of the source. With UniAttn a layer's own values still follow its input.
TEST(AttentionErrors, DepthThatCrossLayerAttentionLoses) {
    const Model model = small_model(kShape, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        return slot == Slot::attn_q ? 0.0F : scattered_small(layer, slot, row, column);
    });
    const auto depth = [&](const char* step) {
        return attention_errors(model, planned(model, {step}).model, kText, 1).layers[0].depth;
    };
    const DepthFactor cla = depth("cla superblocks=2-3"), uniattn = depth("uniattn superblocks=2-3");
    EXPECT_GT(cla.size, 0.05);
    EXPECT_NEAR(cla.effect, 0, 1e-6);
    EXPECT_GT(uniattn.effect, 0.05);
}

TEST(AttentionErrors, WhatHasNoErrorIsRefused) {
    const Model model = dense();
    expect_error(ErrorCode::unsupported, {"no layer's attention"},
                 [&] { attention_errors(model, model, kText, 1); });
}

TEST(AttentionErrors, RandomData) {
    EXPECT_EQ(expected_error_on_random_data(5120, 4096), 1024.0 * 4096);
    EXPECT_EQ(expected_error_on_random_data(512, 576), 0);
}

}  // namespace
}  // namespace refold
