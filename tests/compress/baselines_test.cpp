// gqa, seq, prune_magnitude and drop.
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/small_model.h"

namespace refold {
namespace {

using nlohmann::json;

const SmallShape kEight{.layers = 2, .heads = 8, .kv_heads = 4, .head_dim = 2, .embd = 16};

std::vector<float> weights(const Model& model, size_t position, Slot slot) {
    return materialise(model, model.topology.at(position, slot), slot, position);
}

Model unreadable(Model model) {
    model.shapes_only = true;
    for (auto& [name, tensor] : model.tensors)
        tensor.produce = []() -> std::vector<std::byte> { fail(ErrorCode::input, "test", "no weights"); };
    return model;
}

// ---- gqa

TEST(Gqa, HeadsBecomeTheMeanOfTheirGroup) {
    const Model model = small_model(kEight, scattered);
    const Model grouped = run_method("gqa", model, {"group=2"});
    EXPECT_EQ(grouped.config.n_head_kv, 2);
    EXPECT_EQ(grouped.config.q_per_kv(), 4);
    EXPECT_EQ(grouped.metadata.integer("llama.attention.head_count_kv"), 2U);
    EXPECT_EQ(account(grouped).model.kv_bytes_per_token, account(model).model.kv_bytes_per_token / 2);
    EXPECT_EQ(grouped.topology, model.topology);
    EXPECT_FALSE(grouped.has_sharing());
    for (const Slot slot : {Slot::attn_k, Slot::attn_v}) {
        const auto before = weights(model, 1, slot), after = weights(grouped, 1, slot);
        ASSERT_EQ(after.size(), before.size() / 2);
        // Row 1 of new head 1 is the mean of rows 1 of heads 2 and 3.
        for (size_t c = 0; c < 16; ++c)
            EXPECT_FLOAT_EQ(after[(2 + 1) * 16 + c],
                            (before[(4 + 1) * 16 + c] + before[(6 + 1) * 16 + c]) / 2);
    }
    for (const Slot slot : {Slot::attn_q, Slot::attn_o})
        EXPECT_EQ(weights(grouped, 1, slot), weights(model, 1, slot));
}

TEST(Gqa, EqualHeadsStayAsTheyAre) {
    const Model model = small_model(kEight, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        const bool kv = slot == Slot::attn_k || slot == Slot::attn_v;
        return scattered(layer, slot, kv ? row / 4 * 4 + row % 2 : row, column);
    });
    const Model grouped = run_method("gqa", model, {});
    const auto before = weights(model, 0, Slot::attn_k), after = weights(grouped, 0, Slot::attn_k);
    for (size_t i = 0; i < before.size(); ++i) {
        const size_t row = i / 16, head = row / 4;
        EXPECT_EQ(before[i], after[(head * 2 + row % 2) * 16 + i % 16]);
    }
    expect_identical(run_method("gqa", model, {"group=1"}), model);
}

TEST(Gqa, BiasesAreAveraged) {
    Model model = small_model(kEight, scattered);
    const std::string name = tensor_name(*model.family, Slot::attn_v_bias, 1);
    model.tensors[name] = float_tensor({8}, {0, 1, 2, 5, 4, 5, 6, 7});
    model.topology.positions[1][Slot::attn_v_bias] = Dense{name};
    const Model grouped = run_method("gqa", model, {"group=2"});
    EXPECT_EQ(weights(grouped, 1, Slot::attn_v_bias), (std::vector<float>{1, 3, 5, 6}));
}

TEST(Gqa, TypesOfMeans) {
    const SmallShape shape{.layers = 1, .heads = 4, .kv_heads = 4, .head_dim = 32, .embd = 128};
    const Model model =
        small_model(shape, scattered, {{Slot::attn_k, DType::Q8_0}, {Slot::attn_v, DType::F16}});
    const Model grouped = run_method("gqa", model, {});
    EXPECT_EQ(grouped.tensor("blk.0.attn_k.weight").type, DType::F16);
    EXPECT_EQ(grouped.tensor("blk.0.attn_v.weight").type, DType::F16);
    EXPECT_EQ(run_method("gqa", model, {"type=f32"}).tensor("blk.0.attn_v.weight").type, DType::F32);
}

TEST(Gqa, WhatDoesNotFitIsRefused) {
    const Model model = small_model({.heads = 6, .kv_heads = 3, .embd = 12}, scattered);
    expect_error(ErrorCode::usage, {"group=2", "3 key/value heads", "2 query heads already"},
                 [&] { run_method("gqa", model, {}); });
    expect_error(ErrorCode::usage, {"layers"}, [&] { run_method("gqa", model, {"layers=1"}); });
    const Model four = small_model(kEight, scattered);
    const Model shared = run_method("direct_share", four, {"ratio=0.25"});
    expect_error(ErrorCode::unsupported, {"layer 1", "shared heads"}, [&] { run_method("gqa", shared, {}); });
    const Model dropped = run_method("drop", four, {"layers=0"});
    expect_error(ErrorCode::unsupported, {"different numbers of heads"},
                 [&] { run_method("gqa", dropped, {}); });
}

// ---- seq

TEST(Seq, LatterLayersShareInPairs) {
    const Model model = small_model({.layers = 10}, scattered);
    StepReport report;
    const Model shared = run_method("seq", model, {}, &report);
    EXPECT_EQ(json::parse(report.details)["groups"], json::parse("[[4,5],[6,7],[8,9]]"));
    for (size_t p : {5, 7, 9}) {
        for (const Slot slot : kQkvo) EXPECT_EQ(shared.topology.at(p, slot), model.topology.at(p - 1, slot));
        EXPECT_EQ(shared.topology.at(p, Slot::ffn_up), model.topology.at(p, Slot::ffn_up));
        EXPECT_EQ(shared.topology.at(p, Slot::attn_norm), model.topology.at(p, Slot::attn_norm));
    }
    for (size_t p : {0, 3, 4, 6, 8}) EXPECT_EQ(shared.topology.positions[p], model.topology.positions[p]);
    EXPECT_EQ(parameters(model) - parameters(shared), 3U * 64);
    const Model qkv = run_method("seq", model, {"share=qkv"});
    EXPECT_EQ(parameters(model) - parameters(qkv), 3U * 48);
    EXPECT_EQ(qkv.topology.at(9, Slot::attn_o), model.topology.at(9, Slot::attn_o));
}

TEST(Seq, WholeLayers) {
    const Model model = small_model({.layers = 7, .ff = 2}, scattered);
    const Model all = run_method("seq", model, {"share=layer", "group=3", "part=0.9"});  // 6 layers: 1-6
    for (size_t p : {2, 3}) EXPECT_EQ(all.topology.positions[p], model.topology.positions[1]);
    for (size_t p : {5, 6}) EXPECT_EQ(all.topology.positions[p], model.topology.positions[4]);
    const Model own = run_method("seq", model, {"share=layer", "group=3", "layers=1-3", "norms=keep"});
    EXPECT_EQ(own.topology.at(3, Slot::ffn_down), model.topology.at(1, Slot::ffn_down));
    EXPECT_EQ(own.topology.at(3, Slot::ffn_norm), model.topology.at(3, Slot::ffn_norm));
    EXPECT_EQ(own.topology.positions[5], model.topology.positions[5]);
    expect_identical(run_method("seq", model, {"group=1"}), model);
    expect_identical(run_method("seq", model, {"part=0"}), model);
}

TEST(Seq, WhatDoesNotFitIsRefused) {
    const Model model = small_model({.layers = 5}, scattered);
    expect_error(ErrorCode::usage, {"3 layers", "groups of 2"},
                 [&] { run_method("seq", model, {"layers=1-3"}); });
    expect_error(ErrorCode::usage, {"1, 3", "not consecutive"},
                 [&] { run_method("seq", model, {"layers=1,3"}); });
    const Model dropped = run_method("drop", model, {"layers=3"});
    expect_error(ErrorCode::unsupported, {"layers 3 and 4", "attention"},
                 [&] { run_method("seq", dropped, {"layers=3,4"}); });
    run_method("seq", dropped, {"layers=1,2", "share=layer"});
    const Model headless = run_method("drop", model, {"layers=3", "modules=ffn"});
    expect_error(ErrorCode::unsupported, {"layers 3 and 4", "FFN"}, [&] {
        run_method("seq", headless, {"layers=3,4", "share=layer"});
    });
}

// ---- prune_magnitude

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
    EXPECT_TRUE(none.topology.positions[0].empty());
}

TEST(PruneMagnitude, QuantisedColumnsThatAreNoWholeBlocksAreRequantised) {
    const SmallShape shape{.layers = 2, .heads = 4, .kv_heads = 4, .head_dim = 32, .embd = 128, .ff = 96};
    const Model model = small_model(
        shape, scattered,
        {{Slot::ffn_up, DType::Q4_0}, {Slot::ffn_down, DType::Q4_0}, {Slot::attn_o, DType::Q4_0}});
    StepReport report;
    const Model pruned = run_method("prune_magnitude", model, {"what=both", "ratio=0.3"}, &report);
    const json details = json::parse(report.details);
    for (const auto& r : details["requantised"])
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
    model.topology.positions[2] = model.topology.positions[1];
    model.drop_unreferenced();
    const Model pruned =
        run_method("prune_magnitude", model, {"ratio=0.5", "what=both", "multiple=1"});  // 2 of 4
    EXPECT_EQ(pruned.config.heads_kv, (std::vector<int64_t>{1, 1, 1}));
    EXPECT_EQ(pruned.topology.positions[2], pruned.topology.positions[1]);
    EXPECT_EQ(pruned.config.n_ff_of(1), pruned.config.n_ff_of(2));
    // One of two that share an FFN only in part.
    Model partly = sized({{5, 1}, {2, 3}});
    partly.topology.positions[1][Slot::ffn_up] = partly.topology.at(0, Slot::ffn_up);
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

// ---- drop

TEST(Drop, LeavesModulesOut) {
    const Model model = small_model({.layers = 4, .ff = 2}, scattered);
    const Model attention = run_method("drop", model, {"layers=1,3"});
    EXPECT_EQ(attention.config.heads_kv, (std::vector<int64_t>{2, 0, 2, 0}));
    EXPECT_EQ(parameters(model) - parameters(attention), 2U * (64 + 4));
    EXPECT_EQ(attention.topology.positions[0], model.topology.positions[0]);
    EXPECT_TRUE(attention.topology.has(3, Slot::ffn_norm));
    const Model ffn = run_method("drop", model, {"layers=0", "modules=ffn"});
    EXPECT_EQ(ffn.config.ffs, (std::vector<int64_t>{0, 2, 2, 2}));
    EXPECT_EQ(parameters(model) - parameters(ffn), 24U + 4);
    const Model block = run_method("drop", model, {"layers=2", "modules=block"});
    EXPECT_TRUE(block.topology.positions[2].empty());
    EXPECT_EQ(parameters(model) - parameters(block), 64U + 24 + 8);
    EXPECT_EQ(parameters(run_method("drop", unreadable(model), {"layers=2"})), parameters(model) - 68);
}

TEST(Drop, WhatDoesNotFitIsRefused) {
    const Model model = small_model({}, scattered);
    expect_error(ErrorCode::usage, {"layers is needed"}, [&] { run_method("drop", model, {}); });
    expect_error(ErrorCode::usage, {"layers 0 to 2"}, [&] { run_method("drop", model, {"layers=3"}); });
    const Model once = run_method("drop", model, {"layers=1"});
    expect_error(ErrorCode::unsupported, {"layer 1", "no attention"},
                 [&] { run_method("drop", once, {"layers=1"}); });
    run_method("drop", once, {"layers=1", "modules=ffn"});
}

}  // namespace
}  // namespace refold
