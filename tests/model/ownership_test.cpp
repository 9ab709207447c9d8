#include "model/ownership.h"

#include <gtest/gtest.h>

#include "model/small_model.h"

namespace refold {
namespace {

TEST(Ownership, TensorsBelongToTheLayerOfTheirName) {
    Model model = small_model({}, scattered);
    model.topology.layers[1][Slot::attn_v] = Heads{{{"blk.0.attn_v.weight", 0, 2}}};
    model.topology.layers[2][Slot::attn_v] = Dense{"blk.1.attn_v.weight"};
    model.topology.layers[1][Slot::ffn_up] = LowRank{"u", "v"};
    model.topology.layers[2][Slot::ffn_up] = LowRank{"u", "v"};
    const Ownership owners(model);
    EXPECT_EQ(owners.layer_of("blk.0.attn_v.weight"), 0U);
    EXPECT_EQ(owners.layer_of("blk.1.attn_v.weight"), 1U);  // which does not use it
    EXPECT_EQ(owners.layer_of("u"), 1U);                    // the first that uses it
    EXPECT_EQ(owners.head_of("blk.0.attn_v.weight", 1), 1);
    EXPECT_EQ(owners.head_of("blk.1.attn_v.weight", 1), std::nullopt);
}

// Layer 2 runs layer 0 again, so the weights of layer 3, which are named after layer 2, are its own.
TEST(Ownership, ALayerWithoutWeightsOfItsNameOwnsNone) {
    Model model = small_model({}, scattered);
    auto& layers = model.topology.layers;
    ASSERT_GE(layers.size(), 3U);
    layers.push_back(layers[2]);
    layers[2] = layers[0];
    const Ownership owners(model);
    EXPECT_EQ(owners.layer_of("blk.0.attn_v.weight"), 0U);
    EXPECT_EQ(owners.layer_of("blk.2.attn_v.weight"), 3U);
}

// A tensor that lost heads is renumbered: its head 0 is its layer's head 1.
TEST(Ownership, HeadsAreNumberedAsTheirOwnerCountsThem) {
    Model model = small_model({}, scattered);
    model.topology.layers[1][Slot::attn_q] =
        Heads{{{"blk.0.attn_q.weight", 1, 1}, {"blk.1.attn_q.weight", 0, 1}}};
    model.topology.layers[2][Slot::attn_q] =
        Heads{{{"blk.1.attn_q.weight", 0, 1}, {"blk.2.attn_q.weight", 0, 1}}};
    const Ownership owners(model);
    EXPECT_EQ(owners.head_of("blk.1.attn_q.weight", 0), 1);
    EXPECT_EQ(owners.head_of("blk.2.attn_q.weight", 0), 1);
    EXPECT_EQ(owners.head_of("blk.0.attn_q.weight", 1), 1);
}

TEST(Ownership, FactorsMakeAllHeads) {
    const Model model = small_model({}, scattered);
    const auto heads = [&](Slot slot, const Expression& e) {
        return stored_heads_of(model.config, slot, e, 0);
    };
    EXPECT_EQ(heads(Slot::attn_q, LowRank{"u", "v"}), (std::vector<HeadRef>{{"u", 0}, {"u", 1}}));
    EXPECT_EQ(heads(Slot::attn_o, Plus{Dense{"w"}, LowRank{"u", "v"}}),
              (std::vector<HeadRef>{{"w", 0}, {"w", 1}}));
    EXPECT_TRUE(heads(Slot::ffn_up, Dense{"w"}).empty());
}

}  // namespace
}  // namespace refold
