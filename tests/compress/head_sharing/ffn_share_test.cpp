#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/small_model.h"

namespace refold {
namespace {

using nlohmann::json;

const std::vector<Slot> kGateUp = {Slot::ffn_gate, Slot::ffn_up};
const std::vector<Slot> kAll = {Slot::ffn_gate, Slot::ffn_up, Slot::ffn_down};

// FFNs as vectors of 3 x 8 numbers, gate, up and down of 2 channels:
//   0 = e0, 1 = e8 (up), 2 = 3 e0 + 4 e8, 3 = 4 e8 + 3 e16 (down)
// cosines: 1 <- 0: 0; 2 <- 1: 4/5; 3 <- 1: 4/5, 3 <- 2: 16/25
Model by_hand() {
    const std::vector<std::map<int64_t, float>> vectors = {
        {{0, 1.0F}}, {{8, 1.0F}}, {{0, 3.0F}, {8, 4.0F}}, {{8, 4.0F}, {16, 3.0F}}};
    return small_model({.layers = 4, .ff = 2}, [&](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (!is_matrix(slot) || !belongs_to_ffn(slot)) return scattered(layer, slot, row, column);
        const int64_t place = slot == Slot::ffn_gate ? row * 4 + column
                              : slot == Slot::ffn_up ? 8 + row * 4 + column
                                                     : 16 + row * 2 + column;
        const auto found = vectors[layer].find(place);
        return found == vectors[layer].end() ? 0.0F : found->second;
    });
}

Model apply(const Model& model, const std::vector<std::string>& settings, StepReport* report = nullptr) {
    return run_method("ffn_share", model, settings, report);
}

void expect_takes(const Model& shared, size_t layer, size_t from, const std::vector<Slot>& slots) {
    for (const Slot slot : slots)
        EXPECT_EQ(shared.topology.at(layer, slot), shared.topology.at(from, slot)) << slot_name(slot);
}

TEST(FfnShare, SharesTheMostSimilarOfAnEarlierLayer) {
    const Model model = by_hand();
    StepReport report;
    const Model shared = apply(model, {"ratio=0.5"}, &report);
    expect_takes(shared, 2, 1, kAll);
    expect_takes(shared, 3, 1, kAll);
    EXPECT_EQ(shared.topology.layers[1], model.topology.layers[1]);
    EXPECT_EQ(parameters(model) - parameters(shared), 2U * 24);
    EXPECT_EQ(shared.topology.at(3, Slot::ffn_norm), model.topology.at(3, Slot::ffn_norm));
    const json details = json::parse(report.details);
    EXPECT_NEAR(details["pairs"][0]["cosine"], 0.8, 1e-11);
    EXPECT_EQ(details["removed"], 2);
}

TEST(FfnShare, ChainsAreFollowed) {
    // 1 <- 0 (cosine 0), 2 <- 1, 3 <- 1: all end at 0.
    const Model shared = apply(by_hand(), {"ratio=0.75"});
    for (size_t p = 1; p < 4; ++p) expect_takes(shared, p, 0, kAll);
}

TEST(FfnShare, SlotsRestrictWhatIsSharedNotTheMatch) {
    const Model model = by_hand();
    StepReport report;
    const Model shared = apply(model, {"ratio=0.5", "slots=ffn.gate,ffn.up"}, &report);
    expect_takes(shared, 3, 1, kGateUp);
    EXPECT_EQ(shared.topology.at(3, Slot::ffn_down), model.topology.at(3, Slot::ffn_down));
    EXPECT_NEAR(json::parse(report.details)["pairs"][1]["cosine"], 0.8, 1e-11);  // 1 without down
    EXPECT_EQ(parameters(model) - parameters(shared), 2U * 16);
    expect_error(ErrorCode::usage, {"attn.q"}, [&] { apply(model, {"slots=attn.q"}); });
    expect_error(ErrorCode::usage, {"match=none"}, [&] { apply(model, {"slots=ffn.up", "match=none"}); });
}

TEST(FfnShare, RatioZeroIsTheIdentity) {
    const Model model = by_hand();
    for (const char* match : {"match=weights", "match=random", "match=none"})
        expect_identical(apply(model, {"ratio=0", match}), model);
}

// 9.6 of 32 layers are 10: Table 3's 4.74 B of Llama-2-7B.
TEST(FfnShare, CountsToTheNearest) {
    const Model model = small_model({.layers = 32, .ff = 2}, scattered);
    EXPECT_EQ((parameters(model) - parameters(apply(model, {"ratio=0.3"}))) / 24, 10U);
    EXPECT_EQ((parameters(model) - parameters(apply(model, {"ratio=0.1"}))) / 24, 3U);
    EXPECT_EQ((parameters(model) - parameters(apply(model, {"ratio=1"}))) / 24, 31U);
}

TEST(FfnShare, Controls) {
    const Model model = by_hand();
    const Model none = apply(model, {"ratio=0.5", "match=none"});
    EXPECT_EQ(none.config.ffs, (std::vector<int64_t>{2, 2, 0, 0}));
    EXPECT_FALSE(none.topology.has(2, Slot::ffn_norm));
    EXPECT_EQ(parameters(model) - parameters(none), 2U * (24 + 4));
    StepReport report;
    apply(model, {"ratio=0.5", "match=random", "seed=3"}, &report);
    std::set<int> later;
    const json details = json::parse(report.details);
    for (const auto& pair : details["pairs"]) {
        later.insert(pair["later"][0].get<int>());
        EXPECT_LT(pair["former"][0], pair["later"][0]);
    }
    EXPECT_EQ(later, (std::set<int>{2, 3}));
}

TEST(FfnShare, TiedLayersCountOnce) {
    Model model = by_hand();
    for (const Slot slot : kAll) model.topology.layers[3][slot] = model.topology.at(2, slot);
    model.drop_unreferenced();
    StepReport report;
    const Model shared = apply(model, {"ratio=0.34"}, &report);  // 1 of 3
    EXPECT_EQ(json::parse(report.details)["units"], 3);
    expect_takes(shared, 2, 1, kAll);
    expect_takes(shared, 3, 1, kAll);
    expect_identical(apply(model, {"ratio=1", "layers=2"}), model);
    const Model dropped = apply(model, {"ratio=0.34", "match=none"});
    EXPECT_EQ(dropped.config.ffs, (std::vector<int64_t>{2, 2, 0, 0}));
}

TEST(FfnShare, BiasesGoWithTheirMatrix) {
    Model model = by_hand();
    for (size_t p = 0; p < 4; ++p) {
        const std::string name = tensor_name(*model.family, Slot::ffn_up_bias, p);
        model.tensors[name] = float_tensor({2}, {static_cast<float>(p), 1});
        model.topology.layers[p][Slot::ffn_up_bias] = Dense{name};
    }
    const Model shared = apply(model, {"ratio=0.5"});
    expect_takes(shared, 3, 1, {Slot::ffn_up_bias});
}

TEST(FfnShare, WhatCannotBeSharedIsRefused) {
    const Model model = by_hand();
    Model factors = model;
    factors.tensors["u"] = float_tensor({1, 2}, {1, 2});
    factors.tensors["v"] = float_tensor({4, 1}, {1, 2, 3, 4});
    factors.topology.layers[1][Slot::ffn_up] = LowRank{.u = "u", .v = "v"};
    factors.drop_unreferenced();
    expect_error(ErrorCode::unsupported, {"layer 1", "ffn.up", "factors"}, [&] { apply(factors, {}); });
    const Model rest = apply(factors, {"ratio=1", "layers=0,2,3"});
    EXPECT_EQ(rest.topology.layers[1], factors.topology.layers[1]);
    expect_takes(rest, 3, 0, kAll);

    const Model pruned = run_method("prune_magnitude", small_model({.ff = 8}, scattered),
                                    {"what=ffn", "ratio=0.3", "multiple=1"});
    expect_error(ErrorCode::unsupported, {"different sizes"}, [&] { apply(pruned, {}); });

    const Model wrong = small_model({}, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        return layer == 2 && slot == Slot::ffn_down ? std::nanf("") : scattered(layer, slot, row, column);
    });
    expect_error(ErrorCode::input, {"layer 2", "not finite"}, [&] { apply(wrong, {}); });
}

TEST(FfnShare, ShapesOnlyGivesExactSizes) {
    const Model model = small_model({.layers = 10, .ff = 2}, scattered);
    Model shapes = model;
    shapes.shapes_only = true;
    for (auto& [name, tensor] : shapes.tensors)
        tensor.produce = []() -> std::vector<std::byte> { fail(ErrorCode::input, "test", "no weights"); };
    for (const char* match : {"match=weights", "match=random", "match=none"})
        EXPECT_EQ(parameters(apply(shapes, {"ratio=0.3", match})),
                  parameters(apply(model, {"ratio=0.3", match})));
}

}  // namespace
}  // namespace refold
