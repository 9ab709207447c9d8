// direct_share align=symmetries: heads that are equal up to the symmetries of a head are found, and stand in
// for each other.
#include "compress/head_sharing/aligned_weights.h"
#include "compress/head_sharing/head_copies.h"
#include "core/code_of.h"

namespace refold {
namespace {

constexpr Unit kLater{3, 1}, kFormer{1, 0};
const std::string kAligned = "direct_share ratio=0.125 share=qkv align=symmetries ";

Calibration text_for(const Model& model) { return random_text(model, 16, 32); }

class DirectShareAlign : public testing::TestWithParam<std::string> {};

TEST_P(DirectShareAlign, FindsAndSharesACopyUpToSymmetries) {
    for (const bool biases : {false, true}) {
        const Model model = with_copies({{kLater, kFormer}}, false, biases);
        const Compression aligned = calibrated(model, {kAligned + GetParam()}, text_for(model));
        const auto pairs = pairs_of(details_of(aligned));
        ASSERT_EQ(pairs.size(), 1U);
        ASSERT_TRUE(pairs.contains(kLater))
            << pairs.begin()->first.layer << "." << pairs.begin()->first.index;
        EXPECT_EQ(pairs.at(kLater).first, kFormer);
        EXPECT_NEAR(pairs.at(kLater).second, 1, 1e-5);
        EXPECT_NEAR(details_of(aligned)["explained"][0][2], 1, 1e-5);
        EXPECT_LT(logit_difference(aligned.model, model), 5e-4);
        EXPECT_EQ(parameters(model) - parameters(aligned.model), 16U * 4 * (2 + 1 + 1));
        // The same heads, not aligned.
        std::vector<Requantized> none;
        EXPECT_GT(logit_difference(share_heads(model, {{kLater, kFormer}}, kQkv, none), model), 0.01);
    }
}

INSTANTIATE_TEST_SUITE_P(Metrics, DirectShareAlign, testing::Values("metric=weights", "metric=output"),
                         [](const auto& metric) { return metric.param.substr(7); });

TEST(DirectShareAlignTest, WithoutItTheCopyLooksLikeAnyOtherHead) {
    const Model model = with_copies({{kLater, kFormer}}, false);
    for (const char* metric : {"weights", "output"}) {
        const auto pairs = pairs_of(details_of(calibrated(
            model, {fmt::format("direct_share ratio=1 share=qkv metric={}", metric)}, text_for(model))));
        EXPECT_LT(pairs.at(kLater).second, 0.9) << metric;
    }
}

// 3.1 copies 2.0, which copies 0.1: both take the weights of 0.1, and 3.1 is mapped to these.
TEST(DirectShareAlignTest, ChainsAreAlignedToWhatIsStored) {
    const Model model = with_copies({{{3, 1}, {2, 0}}, {{2, 0}, {0, 1}}}, false);
    for (const char* chain : {"root", "one-hop"}) {
        const Compression aligned = calibrated(
            model, {fmt::format("direct_share ratio=0.25 share=qkv align=symmetries chain={}", chain)},
            text_for(model));
        EXPECT_TRUE(pairs_of(details_of(aligned)).contains({3, 1}));
        EXPECT_TRUE(pairs_of(details_of(aligned)).contains({2, 0}));
        EXPECT_LT(logit_difference(aligned.model, model), 1e-3) << chain;
    }
}

// Pairs of the other layout of rotary embedding are rows apart.
TEST(DirectShareAlignTest, RotatedPairsOfHalves) {
    Model model = with_copies({{kLater, kFormer}}, false);
    const auto cosine = [&] {
        const HeadUnits units(model, kQkvo, kQkv);
        return aligned_cosines(model, units)[7 * 8 + 2];
    };
    EXPECT_NEAR(cosine(), 1, 1e-6);
    model.config.rope.kind = RopeKind::halves;
    EXPECT_LT(cosine(), 0.9);
}

// The map of heads that have nothing in common explains little, and is better than none.
TEST(DirectShareAlignTest, UnlikeHeadsAreMappedAsWellAsPossible) {
    const Model model = with_copies({}, false);
    const std::string all = "direct_share ratio=0.25 share=qkv align=";
    const double plain = logit_difference(calibrated(model, {all + "none"}, text_for(model)).model, model);
    const Compression aligned = calibrated(model, {all + "symmetries match=random"}, text_for(model));
    for (const auto& head : details_of(aligned)["explained"]) {
        EXPECT_GE(head[2], 0);
        EXPECT_LT(head[2], 0.999);
    }
    EXPECT_LT(logit_difference(aligned.model, model), plain);
}

// Quantized columns stay quantized.
TEST(DirectShareAlignTest, TheOutputKeepsItsType) {
    const SmallShape shape{.layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 64, .vocab = 24};
    const Model model = small_model(shape, scattered_small, {{Slot::attn_o, DType::Q8_0}});
    const Compression aligned =
        calibrated(model, {"direct_share ratio=0.34 share=qkv align=symmetries"}, text_for(model));
    size_t changed = 0;
    for (const size_t layer : {1, 2}) {
        const std::string name = tensor_of(aligned.model, layer, Slot::attn_o);
        EXPECT_EQ(aligned.model.tensor(name).type, DType::Q8_0);
        changed += bytes_of(aligned.model, name) == bytes_of(model, name) ? 0 : 1;
    }
    EXPECT_GE(changed, 1U);
}

// In a loop no head has an output of its own.
TEST(DirectShareAlignTest, HeadsOfALoopStay) {
    Model model = with_copies({}, false);
    for (size_t p = 2; p < 4; ++p) model.topology.layers[p] = model.topology.layers[p - 2];
    model.topology.loops = 2;
    model.drop_unreferenced();
    expect_identical(
        calibrated(model, {"direct_share ratio=1 share=qkv align=symmetries"}, text_for(model)).model, model);
}

TEST(DirectShareAlignTest, RefusesWhatItCannotAlign) {
    const Model model = with_copies({}, false);
    const auto refused = [&](const std::string& settings, const std::string& why) {
        expect_error(ErrorCode::usage, {why},
                     [&] { planned(model, {"direct_share align=symmetries " + settings}); });
    };
    refused("", "needs share=qkv");
    refused("share=qkv match=q", "leave it at qk");
    refused("share=qkv match=separate", "leave it at qk");
    refused("match=none", "needs share=qkv");
    refused("share=qkv keep=latter", "keep=former");
    Model normed = model;
    for (size_t p = 0; p < 4; ++p) {
        const std::string name = fmt::format("blk.{}.attn_q_norm.weight", p);
        normed.tensors[name] = float_tensor({4}, {1, 1, 1, 1});
        normed.topology.layers[p][Slot::attn_q_norm] = Dense{name};
    }
    expect_error(ErrorCode::unsupported, {"metric=output", "layer 0"},
                 [&] { aligned_cosines(normed, HeadUnits(normed, kQkvo, kQkv)); });
}

}  // namespace
}  // namespace refold
