// llmdrop: the choice of modules.
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/calibrated.h"

namespace refold {
namespace {

using nlohmann::json;
const SmallShape kSix{.layers = 6, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .vocab = 24};

// Modules of different strength: the layer's number determines how much it adds.
Model graded(const std::vector<float>& attention, const std::vector<float>& ffn) {
    return small_model(kSix, [=](size_t layer, Slot slot, int64_t row, int64_t column) {
        const float factor = slot == Slot::attn_o     ? attention.at(layer)
                             : slot == Slot::ffn_down ? ffn.at(layer)
                                                      : 1.0F;
        return factor * scattered_small(layer, slot, row, column);
    });
}

std::vector<size_t> dropped(const Compression& compression) { return details_of(compression)["layers"]; }

TEST(LlmDrop, TheWeakestModulesGo) {
    const Model model = graded({1, 0.01F, 1, 0, 1, 1}, {1, 1, 1, 1, 0, 0.01F});
    const Calibration text = random_text(model, 4, 24);
    const Compression attention = calibrated(model, {"llmdrop count=2"}, text);
    EXPECT_EQ(dropped(attention), (std::vector<size_t>{3, 1}));  // highest similarity first
    EXPECT_NEAR(details_of(attention)["similarity"][3].get<double>(), 1, 1e-6);
    EXPECT_EQ(attention.model.topology, planned(model, {"drop layers=1,3"}).model.topology);
    EXPECT_EQ(attention.after().kv_bytes_per_token * 6, attention.before.kv_bytes_per_token * 4);
    EXPECT_LE(
        largest_difference(outputs_of(calibrated(model, {"llmdrop count=1"}, text).model), outputs_of(model)),
        1e-4);

    const Compression ffn = calibrated(model, {"llmdrop count=2 modules=ffn"}, text);
    EXPECT_EQ(dropped(ffn), (std::vector<size_t>{4, 5}));
    EXPECT_EQ(ffn.model.topology, planned(model, {"drop layers=4,5 modules=ffn"}).model.topology);

    const Model blocks = graded({1, 0.01F, 0, 0, 1, 1}, {1, 0.01F, 1, 1, 0, 1});
    const Compression block = calibrated(blocks, {"llmdrop count=1 modules=block"}, text);
    EXPECT_EQ(dropped(block), (std::vector<size_t>{1}));
    EXPECT_EQ(block.model.topology, planned(blocks, {"drop layers=1 modules=block"}).model.topology);
}

TEST(LlmDrop, OnlyOfTheLayersThatAreNamed) {
    const Model model = graded({0, 1, 1, 0.5F, 0.1F, 1}, {1, 1, 1, 1, 1, 1});
    const Calibration text = random_text(model, 4, 24);
    // The shell would need quotes, a recipe does not.
    Recipe half = recipe_of({"llmdrop count=1"});
    half.steps = {
        recipe_from_method("llmdrop", std::vector<std::string>{"count=1", "layers=top half"}).steps[0]};
    Work work;
    EXPECT_EQ(dropped(compress(model, half, "test", work, {&text, 1})), (std::vector<size_t>{4}));
    EXPECT_EQ(dropped(calibrated(model, {"llmdrop count=1 layers=1-3,5"}, text)), (std::vector<size_t>{3}));
    // Skips layers that have lost the module already, and layers that others depend on.
    EXPECT_EQ(dropped(calibrated(model, {"drop layers=0", "llmdrop count=1"}, text)),
              (std::vector<size_t>{4}));
    const Compression shared = calibrated(model, {"uniattn superblocks=4-5", "llmdrop count=2"}, text);
    EXPECT_EQ(dropped(shared), (std::vector<size_t>{0, 3}));
    // A layer that uses another one's probabilities can be dropped.
    const Compression reusing =
        calibrated(model, {"uniattn superblocks=3-4", "llmdrop count=1 layers=4"}, text);
    EXPECT_TRUE(reusing.model.topology.sources.empty());
    outputs_of(saved_and_loaded(reusing.model));
}

// x with x + f(x), from the taps of whole sequences.
std::vector<double> by_hand(const Model& model, const Calibration& text, Tap before, Tap output) {
    const size_t layers = model.topology.layers.size();
    const auto width = static_cast<size_t>(model.config.n_embd);
    std::map<std::pair<size_t, Tap>, std::vector<float>> seen;
    const auto observer = std::make_shared<Observer>();
    for (size_t p = 0; p < layers; ++p) observer->taps.insert({{p, before}, {p, output}});
    observer->see = [&](const Tapped& t) { seen[{t.layer, t.tap}] = {t.values.begin(), t.values.end()}; };
    std::vector<double> sums(layers);
    double tokens = 0;
    for (const auto* texts : {&text.fit, &text.held_out}) {
        for (const auto& text_tokens : *texts) {
            SingleSequence sequence(
                model, {.threads = 1, .context = 64, .chunk = 64, .f32 = true, .observer = observer});
            sequence.evaluate_all(text_tokens, [](size_t, std::span<const float>) {});
            tokens += static_cast<double>(text_tokens.size());
            for (size_t p = 0; p < layers; ++p) {
                const auto &x = seen[{p, before}], &f = seen[{p, output}];
                for (size_t at = 0; at < x.size(); at += width) {
                    double xx = 0, yy = 0, xy = 0;
                    for (size_t i = at; i < at + width; ++i) {
                        const double a = static_cast<double>(x[i]), b = a + static_cast<double>(f[i]);
                        xx += a * a;
                        yy += b * b;
                        xy += a * b;
                    }
                    sums[p] += xy / std::sqrt(xx * yy);
                }
            }
        }
    }
    for (double& sum : sums) sum /= tokens;
    return sums;
}

TEST(LlmDrop, SimilarityOfInputAndOutputInEveryDecoder) {
    for (const auto& name : fixture_decoders()) {
        SCOPED_TRACE(name);
        const Model model = fixture_model(name);
        const Calibration text = random_text(model, 3, 20);
        for (const std::string modules : {"attention", "ffn"}) {
            const bool ffn = modules == "ffn";
            const Tap before = ffn && !model.config.parallel_residual ? Tap::residual : Tap::layer_input;
            const auto expected = by_hand(model, text, before, ffn ? Tap::ffn_output : Tap::attn_output);
            const Compression result = calibrated(model, {"llmdrop count=1 modules=" + modules}, text);
            const std::vector<double> got = details_of(result)["similarity"];
            ASSERT_EQ(got.size(), expected.size());
            for (size_t p = 0; p < got.size(); ++p) EXPECT_NEAR(got[p], expected[p], 1e-4) << p;
            EXPECT_EQ(dropped(result).front(),
                      static_cast<size_t>(std::max_element(got.begin(), got.end()) - got.begin()));
            saved_and_loaded(result.model);
            EXPECT_EQ(planned(model, {"llmdrop count=1 modules=" + modules}).after().parameters,
                      result.after().parameters);
        }
    }
}

TEST(LlmDrop, WhatIsNotThereIsRefused) {
    const Model model = graded({1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1});
    const Calibration text = random_text(model, 2, 24);
    expect_error(ErrorCode::usage, {"count=3", "layers=4-5", "has 2"},
                 [&] { calibrated(model, {"llmdrop count=3 layers=4-5"}, text); });
    expect_error(ErrorCode::usage, {"count=6", "has 5"}, [&] {
        planned(model, {"drop layers=2", "llmdrop count=6"});
    });
    expect_error(ErrorCode::usage, {"0 to 5"}, [&] { planned(model, {"llmdrop layers=6"}); });
    expect_error(ErrorCode::unsupported, {"encoder"},
                 [] { planned(fixture_model("bert_encoder"), {"llmdrop count=1"}); });
    expect_error(ErrorCode::usage, {"llmdrop", "--calib"}, [&] {
        Work work;
        compress(model, recipe_of({"llmdrop"}), "test", work);
    });
}

}  // namespace
}  // namespace refold
