// direct_share metric=output: heads are compared by what they compute.
#include "calibrate/residual_stream.h"
#include "compress/head_sharing/head_copies.h"

namespace refold {
namespace {

constexpr Unit kLater{3, 1}, kFormer{1, 0};

nlohmann::json shared_by_output(const Model& model, const std::string& settings = "") {
    return details_of(
        calibrated(model, {"direct_share metric=output " + settings}, random_text(model, 16, 32)));
}

// A copy whose weights are all different computes the same: queries and keys turned, values and output mixed.
TEST(DirectShareOutput, FindsHeadsThatComputeTheSame) {
    const Model model = with_copies({{kLater, kFormer}}, true, true);
    const Compression shared =
        calibrated(model, {"direct_share metric=output ratio=0.125"}, random_text(model, 16, 32));
    const auto pairs = pairs_of(details_of(shared));
    ASSERT_EQ(pairs.size(), 1U);
    ASSERT_TRUE(pairs.contains(kLater));
    EXPECT_EQ(pairs.at(kLater).first, kFormer);
    EXPECT_NEAR(pairs.at(kLater).second, 1, 1e-5);
    EXPECT_LT(logit_difference(shared.model, model), 1e-4);
    const auto by_weights =
        pairs_of(details_of(calibrated(model, {"direct_share ratio=1"}, random_text(model, 16, 32))));
    EXPECT_LT(by_weights.at(kLater).second, 0.9);
}

// The cosine is that of the addends before and after one head is replaced, on the later layer's input.
TEST(DirectShareOutput, ComparesAddendsOnTheLaterInput) {
    const Model model = with_copies({}, false);
    for (const bool output_shared : {true, false}) {
        const auto details = shared_by_output(model, output_shared ? "ratio=1" : "ratio=1 share=qkv");
        const Calibration text = random_text(model, 16, 32);
        ResidualStream stream(model, text.fit, 32, 1);
        const size_t layer = 2;
        stream.advance(model, layer - 1);
        for (const int64_t index : {0, 1}) {
            const auto [former, cosine] = pairs_of(details).at({layer, index});
            // attn.o with the columns of this unit alone.
            const auto alone = [&](Model m) {
                std::vector<float> columns = weight(m, layer, Slot::attn_o);
                for (size_t i = 0; i < columns.size(); ++i)
                    if (static_cast<int64_t>(i % 16 / 8) != index) columns[i] = 0;
                m.tensors["alone"] = float_tensor({16, 16}, columns);
                m.topology.layers[layer][Slot::attn_o] = Dense{"alone"};
                return m;
            };
            std::vector<Requantized> none;
            const Model before = alone(model), after = alone(share_heads(model, {{{layer, index}, former}},
                                                                         output_shared ? kQkvo : kQkv, none));
            ResidualStream::Pass a(stream, before, layer, {Tap::attn_output}),
                b(stream, after, layer, {Tap::attn_output});
            double xy = 0, xx = 0, yy = 0;
            for (size_t s = 0; s < text.fit.size(); ++s) {
                a.run(s);
                b.run(s);
                const auto x = a.tapped(Tap::attn_output), y = b.tapped(Tap::attn_output);
                for (size_t i = 0; i < x.size(); ++i) {
                    xy += static_cast<double>(x[i]) * static_cast<double>(y[i]);
                    xx += static_cast<double>(x[i]) * static_cast<double>(x[i]);
                    yy += static_cast<double>(y[i]) * static_cast<double>(y[i]);
                }
            }
            EXPECT_NEAR(cosine, xy / std::sqrt(xx * yy), 1e-4) << index;
        }
    }
}

// Layers with fewer heads: the formers take turns in its places.
TEST(DirectShareOutput, LayersMayHaveDifferentNumbersOfHeads) {
    const Model full = with_copies({{kLater, kFormer}}, true);
    std::vector<Requantized> none;
    const Model model = drop_heads(full, {{2, 0}, {3, 0}}, none);
    const auto pairs = pairs_of(shared_by_output(model, "ratio=0.17"));
    ASSERT_TRUE(pairs.contains({3, 0}));  // 3.1 of the full model
    EXPECT_EQ(pairs.at({3, 0}).first, kFormer);
    EXPECT_NEAR(pairs.at({3, 0}).second, 1, 1e-5);
}

TEST(DirectShareOutput, NeedsTextAndKeepsItsResults) {
    const Model model = with_copies({{kLater, kFormer}}, true);
    const Calibration text = random_text(model, 16, 32);
    Work work;
    const Recipe recipe = recipe_of({"direct_share metric=output ratio=0.25"});
    expect_error(ErrorCode::usage, {"calib"}, [&] { compress(model, recipe, "test", work); });
    const Compression first = compress(model, recipe, "test", work, {&text, 1});
    EXPECT_EQ(work.reused(), 0U);
    const Compression second = compress(model, recipe, "test", work, {&text, 1});
    EXPECT_EQ(work.reused(), 3U);  // layers with formers
    EXPECT_EQ(details_of(second), details_of(first));
    // A dry run has the sizes.
    const Compression dry = planned(model, {"direct_share metric=output ratio=0.25"});
    EXPECT_EQ(parameters(dry.model), parameters(first.model));
    EXPECT_EQ(details_of(dry)["placeholders"], true);
    expect_error(ErrorCode::usage, {"leave it at qk"},
                 [&] { planned(model, {"direct_share metric=output match=v"}); });
}

}  // namespace
}  // namespace refold
