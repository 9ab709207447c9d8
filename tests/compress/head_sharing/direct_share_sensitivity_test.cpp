// direct_share select=sensitivity: the heads whose replacement changes the predictions least.
#include "compress/head_sharing/head_copies.h"
#include "compress/method/work.h"
#include "exit/log_softmax.h"

namespace refold {
namespace {

constexpr Unit kQuiet{3, 0};

// What 3.0 computes hardly reaches the residual stream.
Model quiet_head() {
    return small_model(kHeads, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        const bool quiet = slot == Slot::attn_o && Unit{layer, column / 8} == kQuiet;
        return scattered_small(layer, slot, row, column) * (quiet ? 1e-3F : 1.0F);
    });
}

std::map<Unit, double> costs_of(const nlohmann::json& details) {
    std::map<Unit, double> out;
    for (const auto& head : details["divergence"]) out[{head[0], head[1]}] = head[2];
    return out;
}

// Mean divergence of the next token, exactly.
double divergence(const Model& model, const Model& other, const Calibration& text) {
    double sum = 0, tokens = 0;
    const EngineOptions options{.threads = 1, .context = 32, .f32 = true};
    const auto width = static_cast<size_t>(model.config.n_vocab);
    for (const auto& sequence : text.fit) {
        const auto a = all_logits(model, sequence, options), b = all_logits(other, sequence, options);
        for (size_t at = 0; at < a.size(); at += width, tokens += 1)
            sum += kl_divergence(std::span(a).subspan(at, width), std::span(b).subspan(at, width));
    }
    return sum / tokens;
}

TEST(DirectShareSensitivity, TakesTheHeadsThatMatterLeast) {
    const Model model = quiet_head();
    const Calibration text = random_text(model, 16, 32);
    // attn.o stays, so the head stays quiet.
    const Compression shared =
        calibrated(model, {"direct_share ratio=0.25 share=qkv select=sensitivity"}, text);
    const auto costs = costs_of(details_of(shared));
    const auto pairs = pairs_of(details_of(shared));
    ASSERT_EQ(costs.size(), 6U);
    ASSERT_EQ(pairs.size(), 2U);
    EXPECT_TRUE(pairs.contains(kQuiet));
    for (const auto& [unit, cost] : costs) {
        if (unit != kQuiet) {
            EXPECT_GT(cost, 10 * costs.at(kQuiet));
        }
        for (const auto& [chosen, match] : pairs) {
            if (!pairs.contains(unit)) {
                EXPECT_LE(costs.at(chosen), cost);
            }
        }
    }
    EXPECT_FALSE(
        pairs_of(details_of(calibrated(model, {"direct_share ratio=0.125"}, text))).contains(kQuiet));
}

// The cost is the divergence of the model in which the match alone is made.
TEST(DirectShareSensitivity, CostsAreDivergences) {
    // Small attentions, so that the divergence is that of its second order.
    const Model model = small_model(kHeads, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        return scattered_small(layer, slot, row, column) * (slot == Slot::attn_o ? 0.05F : 1.0F);
    });
    const Calibration text = random_text(model, 16, 32);
    const Compression shared = calibrated(model, {"direct_share ratio=1 select=sensitivity"}, text);
    const auto costs = costs_of(details_of(shared));
    std::vector<Requantized> none;
    for (const auto& [unit, match] : pairs_of(details_of(shared))) {
        const double exact = divergence(model, share_heads(model, {{unit, match.first}}, kQkvo, none), text);
        EXPECT_NEAR(costs.at(unit), exact, 0.3 * exact) << unit.layer << "." << unit.index;
    }
}

// With align, heads are measured with their outputs mapped: a copy costs nothing.
TEST(DirectShareSensitivity, AlignedCopiesCostNothing) {
    const Model model = with_copies({{{3, 1}, {1, 0}}}, false);
    const Calibration text = random_text(model, 16, 32);
    for (const char* metric : {"weights", "output"}) {
        const Compression shared = calibrated(
            model,
            {fmt::format("direct_share ratio=0.125 share=qkv metric={} align=symmetries select=sensitivity",
                         metric)},
            text);
        EXPECT_TRUE(pairs_of(details_of(shared)).contains({3, 1}));
        EXPECT_LT(costs_of(details_of(shared)).at({3, 1}), 1e-6);
        EXPECT_LT(logit_difference(shared.model, model), 5e-4);
    }
}

// A head of a loop counts in all its layers.
TEST(DirectShareSensitivity, HeadsOfALoopAreMeasuredInAllLayers) {
    Model model = quiet_head();
    for (size_t p = 2; p < 4; ++p) model.topology.layers[p] = model.topology.layers[p - 2];
    model.topology.loops = 2;
    model.drop_unreferenced();
    const Calibration text = random_text(model, 16, 32);
    Work work;
    const Recipe recipe = recipe_of({"direct_share ratio=0.25 select=sensitivity"});
    const Compression shared = compress(model, recipe, "test", work, {&text, 1});
    EXPECT_EQ(costs_of(details_of(shared)).size(), 2U);
    EXPECT_EQ(shared.model.topology.layers[3], shared.model.topology.layers[1]);
    // Kept: two heads, two layers.
    compress(model, recipe, "test", work, {&text, 1});
    EXPECT_EQ(work.reused(), 4U);
}

TEST(DirectShareSensitivity, KeepsItsResultsForOtherRatios) {
    const Model model = quiet_head();
    const Calibration text = random_text(model, 16, 32);
    Work work;
    const auto run = [&](const char* ratio) {
        return compress(model, recipe_of({fmt::format("direct_share select=sensitivity ratio={}", ratio)}),
                        "test", work, {&text, 1});
    };
    const auto first = costs_of(details_of(run("0.125")));
    EXPECT_EQ(work.reused(), 0U);
    EXPECT_EQ(costs_of(details_of(run("0.5"))), first);
    EXPECT_EQ(work.reused(), 6U);
    expect_error(ErrorCode::usage, {"keep=former"},
                 [&] { planned(model, {"direct_share select=sensitivity keep=latter"}); });
}

}  // namespace
}  // namespace refold
