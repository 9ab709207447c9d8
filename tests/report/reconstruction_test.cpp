#include "report/reconstruction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error_of.h"
#include "engine/expression_models.h"
#include "model/materialize.h"

namespace refold {
namespace {

size_t column(const Reconstruction& r, Slot slot) {
    return static_cast<size_t>(std::find(r.slots.begin(), r.slots.end(), slot) - r.slots.begin());
}

double relative(const std::vector<float>& w, const std::vector<float>& other) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < w.size(); ++i) {
        difference += std::pow(static_cast<double>(other[i]) - w[i], 2);
        norm += std::pow(static_cast<double>(w[i]), 2);
    }
    return std::sqrt(difference / norm);
}

TEST(Reconstruction, OfTheSameModelIsExact) {
    const Model model = ExpressionBuilder("llama").finish();
    const Reconstruction r = compare_weights(model, model);
    EXPECT_EQ(r.total, 0);
    EXPECT_EQ(r.different, 0U);
    EXPECT_EQ(r.missing, 0U);
    EXPECT_EQ(r.compared, model.topology.layers.size() * r.slots.size());
    EXPECT_EQ(r.slots.size(), 7U);
}

TEST(Reconstruction, TellsEveryWeight) {
    const Model original = ExpressionBuilder("llama").finish();
    ExpressionBuilder b("llama");
    b.at(1, Slot::ffn_down) = b.low_rank(1, Slot::ffn_down, 7);
    b.at(2, Slot::ffn_up) = Dense{"blk.0.ffn_up.weight"};
    const Model other = b.finish();
    const Reconstruction r = compare_weights(original, other);
    EXPECT_EQ(r.different, 2U);
    EXPECT_EQ(r.errors[0][column(r, Slot::ffn_up)], 0);
    for (const auto& [p, slot] : {std::pair{1, Slot::ffn_down}, std::pair{2, Slot::ffn_up}}) {
        const auto layer = static_cast<size_t>(p);
        const double expected =
            relative(materialize(original, original.topology.at(layer, slot), slot, layer),
                     materialize(other, other.topology.at(layer, slot), slot, layer));
        EXPECT_NEAR(r.errors[layer][column(r, slot)], expected, 1e-12);
        EXPECT_GT(expected, 0.5);
    }
    EXPECT_GT(r.total, 0);
    EXPECT_LT(r.total, 1);
}

TEST(Reconstruction, WhatIsGoneIsNotCompared) {
    const Model original = ExpressionBuilder("llama").finish();
    ExpressionBuilder b("llama");
    b.prune_heads(1, 1);
    b.prune_ffn(3, 0);
    b.share_probabilities(2, 0);
    const Reconstruction r = compare_weights(original, b.finish());
    EXPECT_EQ(r.missing, 4U + 3 + 2);
    EXPECT_EQ(r.total, 0);
    EXPECT_TRUE(std::isnan(r.errors[3][column(r, Slot::ffn_gate)]));
    EXPECT_TRUE(std::isnan(r.errors[2][column(r, Slot::attn_k)]));
    EXPECT_EQ(r.errors[2][column(r, Slot::attn_v)], 0);
}

TEST(Reconstruction, RefusesWhatCannotBeCompared) {
    const Model original = ExpressionBuilder("llama").finish();
    Model shapes = original;
    shapes.shapes_only = true;
    Model shorter = original;
    shorter.topology.layers.pop_back();
    const auto message = [&](const Model& other) {
        return error_of([&] { compare_weights(original, other); }, ErrorCode::input);
    };
    EXPECT_NE(message(shapes).find("only shapes"), std::string::npos);
    EXPECT_NE(message(shorter).find("got 3 layers, expected the 4"), std::string::npos);
}

}  // namespace
}  // namespace refold
