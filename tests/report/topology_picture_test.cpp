#include "report/topology_picture.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/expression_models.h"
#include "report/markup_check.h"
#include "report/shared_model.h"

namespace refold {
namespace {

size_t slot_index(const TopologyMap& map, Slot slot) {
    return static_cast<size_t>(std::find(map.slots.begin(), map.slots.end(), slot) - map.slots.begin());
}

TEST(TopologyMap, FindsWhereHeadsComeFrom) {
    const TopologyMap map = topology_map(shared_model());
    const size_t q = slot_index(map, Slot::attn_q), k = slot_index(map, Slot::attn_k),
                 down = slot_index(map, Slot::ffn_down);
    ASSERT_EQ(map.rows.size(), 3U);
    ASSERT_EQ(map.rows[2][q].size(), 4U);
    EXPECT_FALSE(map.borrowed(2, q, 1));
    EXPECT_TRUE(map.borrowed(2, q, 2));
    EXPECT_EQ(map.rows[2][q][3].layer, 0U);
    EXPECT_EQ(map.rows[2][q][3].head, 1);
    EXPECT_EQ(map.rows[0][q][1].borrowers, 1);
    EXPECT_EQ(map.rows[0][q][2].borrowers, 0);
    EXPECT_TRUE(map.borrowed(2, k, 1));
    ASSERT_EQ(map.rows[1][down].size(), 1U);
    EXPECT_FALSE(map.borrowed(1, down, 0));
    EXPECT_EQ(topology_summary(map),
              "3 layers; attn.q: 2 of 12 heads borrowed (16.7 %); attn.k: 1 of 6 heads borrowed (16.7 %)");
}

// The heads of a pruned tensor are renumbered: its head 1 may be head 2 of its layer.
TEST(TopologyMap, NamesHeadsAsTheirOwnerCountsThem) {
    Model model = shared_model();
    model.topology.layers[1][Slot::attn_v] =
        Heads{{{"blk.0.attn_v.weight", 1, 1}, {"blk.1.attn_v.weight", 0, 1}}};
    model.topology.layers[2][Slot::attn_v] =
        Heads{{{"blk.1.attn_v.weight", 0, 1}, {"blk.2.attn_v.weight", 0, 1}}};
    const TopologyMap map = topology_map(model);
    const size_t v = slot_index(map, Slot::attn_v);
    EXPECT_FALSE(map.borrowed(1, v, 1));
    EXPECT_EQ(map.rows[2][v][0].layer, 1U);
    EXPECT_EQ(map.rows[2][v][0].head, 1);
}

// Weights that only other layers use still belong to the layer they are named after.
TEST(TopologyMap, KnowsTheOwnerThatDoesNotUseItsWeights) {
    Model model = shared_model();
    model.topology.layers[1][Slot::attn_v] = Heads{{{"blk.0.attn_v.weight", 0, 2}}};
    model.topology.layers[2][Slot::attn_v] = Dense{"blk.1.attn_v.weight"};
    const TopologyMap map = topology_map(model);
    const size_t v = slot_index(map, Slot::attn_v);
    EXPECT_TRUE(map.borrowed(2, v, 0));
    EXPECT_EQ(map.rows[2][v][0].layer, 1U);
    EXPECT_EQ(map.rows[2][v][0].head, -1);
    EXPECT_TRUE(map.borrowed(1, v, 0));
}

TEST(TopologyMap, TiedMatricesAreBorrowedWhole) {
    Model model = shared_model();
    model.topology.layers[1][Slot::ffn_up] = Dense{"blk.0.ffn_up.weight"};
    const TopologyMap map = topology_map(model);
    const size_t up = slot_index(map, Slot::ffn_up);
    EXPECT_TRUE(map.borrowed(1, up, 0));
    EXPECT_EQ(map.rows[0][up][0].borrowers, 1);
    EXPECT_NE(topology_summary(map).find("ffn.up: 1 of 3 matrices"), std::string::npos);
}

TEST(TopologyPicture, IsWellFormedAndTellsDetails) {
    Model model = shared_model();
    model.label = "a <model> & \"more\"";
    const std::string svg = topology_svg(model);
    EXPECT_EQ(markup_error(svg), "");
    EXPECT_NE(svg.find("layer 2, attn.q, head 3: weights of layer 0, head 1"), std::string::npos);
    EXPECT_NE(svg.find("layer 0, attn.k, head 0: own weights, also used in 1 later place"),
              std::string::npos);
    EXPECT_EQ(svg.find("<model>"), std::string::npos);
}

TEST(TopologyPicture, ShowsEveryExpression) {
    for (const auto& family : kExpressionFamilies) {
        for (const auto& [name, build] : expressions::cases()) {
            ExpressionBuilder builder(family);
            build(builder);
            const std::string svg = topology_svg(builder.finish());
            EXPECT_EQ(markup_error(svg), "") << family << " " << name;
            EXPECT_EQ(svg.find("nan"), std::string::npos) << family << " " << name;
        }
    }
}

TEST(TopologyPicture, TellsFactorsFromStoredMatrices) {
    ExpressionBuilder b("llama");
    EXPECT_EQ(topology_svg(b.finish()).find("in factors"), std::string::npos);
    b.at(1, Slot::ffn_down) = b.low_rank(1, Slot::ffn_down, 7);
    b.attention_tucker(2, {7, 5, 3});
    b.at(3, Slot::ffn_up) = b.plus(3, Slot::ffn_up, Dense{"blk.0.ffn_up.weight"}, 6);
    b.at(3, Slot::ffn_down) = b.at(1, Slot::ffn_down);
    const Model model = b.finish();
    const TopologyMap map = topology_map(model);
    const size_t q = slot_index(map, Slot::attn_q), k = slot_index(map, Slot::attn_k),
                 up = slot_index(map, Slot::ffn_up), down = slot_index(map, Slot::ffn_down);
    EXPECT_TRUE(map.factors[2][q].instead);
    EXPECT_EQ(map.factors[2][q].text, "Tucker 7 x 5 x 3");
    EXPECT_EQ(map.rows[2][k].size(), 2U);  // one cell per head of the slot, not of the core
    EXPECT_FALSE(map.borrowed(2, k, 1));
    EXPECT_FALSE(map.factors[3][up].instead);
    EXPECT_EQ(map.factors[3][up].text, "LoRA 6");
    EXPECT_TRUE(map.borrowed(3, up, 0));
    EXPECT_TRUE(map.borrowed(3, down, 0));
    const std::string summary = topology_summary(map);
    EXPECT_NE(summary.find("ffn.down: 2 of 4 in factors"), std::string::npos) << summary;
    EXPECT_NE(summary.find("attn.q, attn.k, attn.v, attn.o: each 1 of 4 in factors"), std::string::npos)
        << summary;
    EXPECT_NE(summary.find("ffn.up: 1 of 4 with LoRA"), std::string::npos) << summary;
    const std::string svg = topology_svg(map, "x");
    for (const char* part :
         {"in factors", "with a LoRA of its own",
          "layer 1, ffn.down: own weights, also used "
          "in 1 later place, low rank 7",
          "layer 3, ffn.down: weights of layer 1, low rank 7", "layer 3, ffn.up: weights of layer 0, LoRA 6",
          "layer 2, attn.q: own weights, used here only, Tucker 7 x 5 x 3"}) {
        EXPECT_NE(svg.find(part), std::string::npos) << part;
    }
}

TEST(TopologyPicture, PrunedLayersHaveFewerCells) {
    ExpressionBuilder b("llama");
    b.prune_heads(1, 1);
    b.prune_heads(2, 0);
    b.prune_ffn(3, 0);
    const TopologyMap map = topology_map(b.finish());
    const size_t q = slot_index(map, Slot::attn_q), down = slot_index(map, Slot::ffn_down);
    EXPECT_EQ(map.rows[0][q].size(), 4U);
    EXPECT_EQ(map.rows[1][q].size(), 2U);
    EXPECT_EQ(map.rows[2][q].size(), 0U);
    EXPECT_EQ(map.rows[3][down].size(), 0U);
    EXPECT_EQ(topology_summary(map), "4 layers, no sharing");
}

TEST(TopologyPicture, ShowsWhereAttentionComesFrom) {
    ExpressionBuilder b("llama");
    b.share_probabilities(1, 0);
    b.compensate(1, Slot::attn_comp);
    b.share_kv(3, 2);
    b.compensate(3, Slot::attn_comp);
    b.at(3, Slot::attn_comp) = b.low_rank(3, Slot::attn_comp, 5);
    const TopologyMap map = topology_map(b.finish());
    EXPECT_EQ(topology_summary(map),
              "4 layers; 1 with attention probabilities of another; 1 with keys and values of another; "
              "attn.comp: 1 of 2 in factors");
    const size_t q = slot_index(map, Slot::attn_q), v = slot_index(map, Slot::attn_v),
                 comp = slot_index(map, Slot::attn_comp);
    EXPECT_TRUE(map.replaced(1, q));
    EXPECT_FALSE(map.replaced(1, v));
    EXPECT_FALSE(map.replaced(0, q));
    EXPECT_TRUE(map.replaced(3, v));
    EXPECT_FALSE(map.replaced(3, q));
    EXPECT_EQ(map.rows[1][comp].size(), 1U);
    EXPECT_FALSE(map.borrowed(1, comp, 0));
    EXPECT_TRUE(map.rows[0][comp].empty());
    const std::string svg = topology_svg(map, "x");
    EXPECT_EQ(markup_error(svg), "");
    for (const char* part : {"layer 1, attn.q: none, attention probabilities of layer 0 instead",
                             "layer 1, attn.k: none, attention probabilities of layer 0 instead",
                             "layer 3, attn.v: none, keys and values of layer 2 instead",
                             "layer 1, attn.comp: own weights, used here only",
                             "layer 3, attn.comp: own weights, used here only, low rank 5", ">Wc<",
                             "attention of another layer"}) {
        EXPECT_NE(svg.find(part), std::string::npos) << part;
    }
    EXPECT_EQ(svg.find("layer 1, attn.v: none"), std::string::npos);
    EXPECT_EQ(svg.find("layer 3, attn.q: none"), std::string::npos);
    // A model without it shows nothing.
    EXPECT_EQ(topology_svg(ExpressionBuilder("llama").finish()).find("attention of another layer"),
              std::string::npos);
    ExpressionBuilder alone("llama");
    alone.share_probabilities(1, 0);
    EXPECT_EQ(topology_summary(topology_map(alone.finish())),
              "4 layers; 1 with attention probabilities of another");
}

TEST(TopologyPicture, LoopsAreCounted) {
    ExpressionBuilder b("llama");
    b.loop(2);
    const std::string summary = topology_summary(topology_map(b.finish()));
    EXPECT_NE(summary.find("4 layers in 2 loops; attn.q, attn.o: each 8 of 16 heads borrowed (50.0 %)"),
              std::string::npos)
        << summary;
}

}  // namespace
}  // namespace refold
