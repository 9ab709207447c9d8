#include "compress/small_model.h"
#include "model/materialize.h"

namespace refold {
namespace {

const SmallShape kEight{.layers = 2, .heads = 8, .kv_heads = 4, .head_dim = 2, .embd = 16};

std::vector<float> weights(const Model& model, size_t layer, Slot slot) {
    return materialize(model, model.topology.at(layer, slot), slot, layer);
}

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
    model.topology.layers[1][Slot::attn_v_bias] = Dense{name};
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

}  // namespace
}  // namespace refold
