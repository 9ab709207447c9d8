#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/small_model.h"
#include "model/materialize.h"

namespace refold {
namespace {

using nlohmann::json;

std::vector<float> weights(const Model& model, size_t layer, Slot slot) {
    return materialize(model, model.topology.at(layer, slot), slot, layer);
}

// Head h of layer l has all weights +-(sizes[l][h]); 4 rows of 4 elements in each of q, k, v, o.
Model sized(const std::vector<std::vector<float>>& sizes) {
    return small_model({.layers = static_cast<int64_t>(sizes.size()), .ff = 4},
                       [&](size_t layer, Slot slot, int64_t row, int64_t column) {
                           if (!consists_of_heads(slot)) return scattered(layer, slot, row, column);
                           const int64_t along = slot == Slot::attn_o ? column : row;
                           const float size = sizes[layer][static_cast<size_t>(along / 2)];
                           return (row + column) % 2 == 0 ? size : -size;
                       });
}

TEST(PruneMagnitude, LeavesOutTheSmallestHeads) {
    const Model model = sized({{5, 1}, {2, 3}, {6, 4}});
    StepReport report;
    const Model pruned = run_method("prune_magnitude", model, {"ratio=0.5"}, &report);
    EXPECT_EQ(pruned.config.heads_kv, (std::vector<int64_t>{1, 0, 2}));
    EXPECT_EQ(json::parse(report.details)["heads"], json::parse("[[0,1],[1,0],[1,1]]"));
    EXPECT_EQ(parameters(model) - parameters(pruned), 3U * 32 + 4);
    for (const Slot slot : kQkvo) {
        EXPECT_EQ(unit_weights(pruned, {0, 0}, slot), unit_weights(model, {0, 0}, slot));
        EXPECT_FALSE(pruned.topology.has(1, slot));
    }
    const Model by_layer = run_method("prune_magnitude", model, {"ratio=0.5", "rank=layer"});
    EXPECT_EQ(by_layer.config.heads_kv, (std::vector<int64_t>{1, 1, 1}));
    EXPECT_EQ(unit_weights(by_layer, {1, 0}, Slot::attn_k), unit_weights(model, {1, 1}, Slot::attn_k));
    const Model last = run_method("prune_magnitude", model, {"ratio=0.5", "layers=2"});
    EXPECT_EQ(last.config.heads_kv, (std::vector<int64_t>{2, 2, 0}));
    expect_identical(run_method("prune_magnitude", model, {"ratio=0"}), model);
    expect_identical(run_method("prune_magnitude", model, {"ratio=0.4", "rank=layer"}), model);
}

// As many of each layer, and one more where it matters least; the head count is that of global.
TEST(PruneMagnitude, EvenlyOverTheLayers) {
    const Model model = sized({{5, 1}, {2, 3}, {6, 4}});
    StepReport report;
    const Model pruned = run_method("prune_magnitude", model, {"ratio=0.67", "rank=even"}, &report);
    EXPECT_EQ(pruned.config.heads_kv, (std::vector<int64_t>{1, 0, 1}));
    EXPECT_EQ(unit_weights(pruned, {0, 0}, Slot::attn_q), unit_weights(model, {0, 0}, Slot::attn_q));
    // 4 heads of 32 weights, and the norm of the layer without attention.
    const json size = json::parse(report.details)["equal_size"];
    EXPECT_EQ(size["parameters"], parameters(model) - 4U * 32);
    EXPECT_EQ(size["reached"], parameters(pruned));
    EXPECT_EQ(size["difference"], -4);
    const Model half = run_method("prune_magnitude", model, {"ratio=0.5", "rank=even"}, &report);
    EXPECT_EQ(half.config.heads_kv, (std::vector<int64_t>{1, 1, 1}));
    EXPECT_EQ(json::parse(report.details)["equal_size"]["difference"], 0);
    // All that layers 1 and 2 have.
    const Model two = run_method("prune_magnitude", model, {"ratio=0.9", "rank=even", "layers=1-2"}, &report);
    EXPECT_EQ(two.config.heads_kv, (std::vector<int64_t>{2, 0, 0}));
    EXPECT_EQ(json::parse(report.details)["equal_size"]["difference"], 32 - 2 * 4);
    // 0.4 of two heads are none.
    run_method("prune_magnitude", model, {"ratio=0.4", "rank=layer"}, &report);
    EXPECT_EQ(json::parse(report.details)["equal_size"]["difference"], 2 * 32);
    EXPECT_NE(report.lines.back().find("64 parameters more"), std::string::npos) << report.lines.back();
}

// Heads keep the slopes that they had, also when more are left out later.
TEST(PruneMagnitude, HeadsKeepTheirSlopesOfAlibi) {
    Model model = small_model({.layers = 2, .heads = 4, .kv_heads = 4, .head_dim = 2, .embd = 8},
                              [](size_t layer, Slot slot, int64_t row, int64_t column) {
                                  if (!consists_of_heads(slot)) return scattered(layer, slot, row, column);
                                  const int64_t head = (slot == Slot::attn_o ? column : row) / 2;
                                  const int64_t sizes[] = {3, 1, 4, 2};
                                  return static_cast<float>(sizes[head] + static_cast<int64_t>(layer) * 10);
                              });
    model.config.max_alibi_bias = 8;
    const Model once = run_method("prune_magnitude", model, {"ratio=0.125"});
    EXPECT_EQ(once.config.alibi_heads, (std::vector<std::vector<int64_t>>{{0, 2, 3}, {}}));
    const Model twice = run_method("prune_magnitude", once, {"ratio=0.145"});
    EXPECT_EQ(twice.config.alibi_heads, (std::vector<std::vector<int64_t>>{{0, 2}, {}}));
    const Model none = run_method("prune_magnitude", twice, {"ratio=0.5", "layers=0"});
    EXPECT_EQ(none.config.heads_kv, (std::vector<int64_t>{0, 4}));
    EXPECT_EQ(none.config.alibi_heads, (std::vector<std::vector<int64_t>>{{}, {}}));
}

// One weight of 3 against two of 2: 3 < 4 by |w|, 9 > 8 by w^2.
TEST(PruneMagnitude, PowerOfTheImportance) {
    const Model model = small_model({.layers = 1}, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (!consists_of_heads(slot)) return scattered(layer, slot, row, column);
        if (slot != Slot::attn_k || column > 1) return 0.0F;
        return row == 0 && column == 0 ? 3.0F : row == 2 ? 2.0F : 0.0F;
    });
    const auto kept = [&](const char* power) {
        StepReport report;
        run_method("prune_magnitude", model, {"ratio=0.5", power}, &report);
        return json::parse(report.details)["heads"][0][1].get<int>();
    };
    EXPECT_EQ(kept("p=1"), 0);
    EXPECT_EQ(kept("p=2"), 1);
}

TEST(PruneMagnitude, ChannelsGoFromAllThreeMatrices) {
    // Channel c of a layer weighs c + 1 in gate, up and down alike.
    const Model model =
        small_model({.layers = 2, .ff = 8}, [](size_t layer, Slot slot, int64_t row, int64_t column) {
            if (slot == Slot::ffn_gate || slot == Slot::ffn_up) return static_cast<float>(row + 1);
            if (slot == Slot::ffn_down) return static_cast<float>(column + 1);
            return scattered(layer, slot, row, column);
        });
    const Model pruned = run_method("prune_magnitude", model, {"what=ffn", "ratio=0.25", "multiple=1"});
    EXPECT_EQ(pruned.config.ffs, (std::vector<int64_t>{6, 6}));
    for (const Slot slot : {Slot::ffn_gate, Slot::ffn_down}) {
        std::vector<float> expected;
        for (int i = 0; i < 24; ++i)
            expected.push_back(static_cast<float>(slot == Slot::ffn_gate ? i / 4 + 3 : i % 6 + 3));
        EXPECT_EQ(weights(pruned, 1, slot), expected);
    }
    // 6 of 8 channels in whole fours are 8.
    expect_identical(run_method("prune_magnitude", model, {"what=ffn", "ratio=0.25", "multiple=4"}), model);
    const Model four = run_method("prune_magnitude", model, {"what=ffn", "ratio=0.6", "multiple=4"});
    EXPECT_EQ(four.config.ffs, (std::vector<int64_t>{4, 4}));
    EXPECT_EQ(weights(four, 0, Slot::ffn_up)[0], 5.0F);
    const Model none = run_method("prune_magnitude", model, {"what=both", "ratio=1"});
    EXPECT_EQ(none.config.ffs, (std::vector<int64_t>{0, 0}));
    EXPECT_EQ(none.config.heads_kv, (std::vector<int64_t>{0, 0}));
    EXPECT_TRUE(none.topology.layers[0].empty());
}

TEST(PruneMagnitude, QuantisedColumnsThatAreNoWholeBlocksAreRequantized) {
    const SmallShape shape{.layers = 2, .heads = 4, .kv_heads = 4, .head_dim = 32, .embd = 128, .ff = 96};
    const Model model = small_model(
        shape, scattered,
        {{Slot::ffn_up, DType::Q4_0}, {Slot::ffn_down, DType::Q4_0}, {Slot::attn_o, DType::Q4_0}});
    StepReport report;
    const Model pruned = run_method("prune_magnitude", model, {"what=both", "ratio=0.3"}, &report);
    const json details = json::parse(report.details);
    for (const auto& r : details["requantized"])
        EXPECT_NE(r["tensor"].get<std::string>().find("ffn_down"), std::string::npos);
    for (size_t p = 0; p < 2; ++p) {
        const int64_t kept = pruned.config.n_ff_of(p);
        EXPECT_EQ(kept % 32, 0);
        if (kept == 96) continue;
        EXPECT_EQ(pruned.tensor(tensor_name(*model.family, Slot::ffn_up, p)).type, DType::Q4_0);
        EXPECT_EQ(pruned.tensor(tensor_name(*model.family, Slot::ffn_down, p)).type, DType::Q8_0);
        EXPECT_EQ(pruned.tensor(tensor_name(*model.family, Slot::attn_o, p)).type, DType::Q4_0);
    }
    const Model odd =
        run_method("prune_magnitude", model, {"what=ffn", "ratio=0.3", "rank=layer", "multiple=1"});
    EXPECT_EQ(odd.config.ffs, (std::vector<int64_t>{68, 68}));
    EXPECT_EQ(odd.tensor("blk.0.ffn_down.weight").type, DType::F16);
}

TEST(PruneMagnitude, TiedLayersGoTogether) {
    Model model = sized({{5, 1}, {2, 3}, {6, 4}});
    model.topology.layers[2] = model.topology.layers[1];
    model.drop_unreferenced();
    const Model pruned =
        run_method("prune_magnitude", model, {"ratio=0.5", "what=both", "multiple=1"});  // 2 of 4
    EXPECT_EQ(pruned.config.heads_kv, (std::vector<int64_t>{1, 1, 1}));
    EXPECT_EQ(pruned.topology.layers[2], pruned.topology.layers[1]);
    EXPECT_EQ(pruned.config.n_ff_of(1), pruned.config.n_ff_of(2));
    // One of two that share an FFN only in part.
    Model partly = sized({{5, 1}, {2, 3}});
    partly.topology.layers[1][Slot::ffn_up] = partly.topology.at(0, Slot::ffn_up);
    partly.drop_unreferenced();
    expect_error(ErrorCode::unsupported, {"ffn.up", "shared"},
                 [&] { run_method("prune_magnitude", partly, {"what=ffn"}); });
}

TEST(PruneMagnitude, WeightsThatAreNotFiniteAreNamed) {
    for (const Slot bad : {Slot::attn_v, Slot::ffn_down}) {
        const Model model = small_model({}, [&](size_t layer, Slot slot, int64_t row, int64_t column) {
            return layer == 1 && slot == bad && row == 1 ? INFINITY : scattered(layer, slot, row, column);
        });
        expect_error(ErrorCode::input, {"layer 1", "not finite"},
                     [&] { run_method("prune_magnitude", model, {"what=both"}); });
    }
}

TEST(PruneMagnitude, ShapesOnlyGivesTheSizes) {
    const Model model =
        small_model({.layers = 6, .heads = 4, .kv_heads = 4, .head_dim = 2, .embd = 8}, scattered);
    StepReport report;
    const Model pruned = run_method("prune_magnitude", unreadable(model), {"ratio=0.5"}, &report);
    EXPECT_EQ(pruned.config.heads_kv, std::vector<int64_t>(6, 2));
    EXPECT_NE(report.lines[report.lines.size() - 1].find("placeholder"), std::string::npos);
}

}  // namespace
}  // namespace refold
