#include "compress/calibrated.h"
#include "engine/engine.h"
#include "model/materialize.h"

namespace refold {
namespace {

const SmallShape kFour{.layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .vocab = 24};

std::vector<float> logits(const Model& model, EngineKind kind) {
    const auto tokens = random_tokens(20, model.config.n_vocab, 5);
    return all_logits(model, tokens, {.kind = kind, .threads = 1, .context = 32, .f32 = true});
}

// LoRA on stored, shared, looped and factored weights.
TEST(LoraMethod, ChangesNoLogit) {
    const Model dense = small_model(kFour, scattered_small);
    std::vector<Model> models = {dense};
    for (const char* before : {"direct_share ratio=0.3", "recursive loops=2"})
        models.push_back(planned(dense, {before}).model);
    for (const Model& base : models) {
        const Model out = planned(base, {"lora rank=3"}).model;
        // The products of weights with and without a LoRA add up in different orders.
        EXPECT_LE(largest_difference(logits(out, EngineKind::ggml), logits(base, EngineKind::ggml)), 1e-5);
        if (has_torch_engine()) {
            EXPECT_EQ(logits(out, EngineKind::torch), logits(base, EngineKind::torch));
        }
        saved_and_loaded(out);
    }
    Work work;
    const Model factored = apply_method(dense, "laser", {"slots=ffn.down", "rho=0.3"}, work).model;
    const Model out = planned(factored, {"lora rank=3"}).model;
    EXPECT_TRUE(std::holds_alternative<LowRank>(base_of(out.topology.at(1, Slot::ffn_down))));
    EXPECT_EQ(logits(out, EngineKind::ggml), logits(factored, EngineKind::ggml));
}

TEST(LoraMethod, RanksSlotsAndLayers) {
    const Model dense = small_model(kFour, scattered_small);
    const Model out = planned(dense, {"lora ranks=5,100,7,3 slots=attn,ffn.up layers=1-2"}).model;
    const auto rank = [&](size_t p, Slot slot) {
        const auto* plus = std::get_if<Plus>(&out.topology.at(p, slot));
        return plus == nullptr ? 0 : out.tensor(plus->term.u).row_elements();
    };
    EXPECT_EQ(rank(1, Slot::attn_q), 5);
    EXPECT_EQ(rank(1, Slot::attn_k), 8);  // as many as it has rows
    EXPECT_EQ(rank(2, Slot::attn_o), 7);
    EXPECT_EQ(rank(2, Slot::ffn_up), 3);
    EXPECT_EQ(rank(2, Slot::ffn_down), 0);
    EXPECT_EQ(rank(0, Slot::attn_q), 0);
    EXPECT_EQ(parameters(out) - parameters(dense),
              2U * (5 * (16 + 16) + 2 * 8 * (16 + 8) + 7 * (16 + 16) + 3 * (16 + 32)));
}

TEST(LoraMethod, EveryLayerHasItsOwnNumbersBySeed) {
    const Model looped = planned(small_model(kFour, scattered_small), {"recursive loops=2"}).model;
    const auto a_of = [](const Model& model, size_t p) {
        return floats_of(model, std::get<Plus>(model.topology.at(p, Slot::attn_q)).term.v);
    };
    const Model out = planned(looped, {"lora rank=2 seed=3"}).model;
    EXPECT_NE(a_of(out, 0), a_of(out, 2));
    EXPECT_EQ(a_of(out, 1), a_of(planned(looped, {"lora rank=2 seed=3"}).model, 1));
    EXPECT_NE(a_of(out, 1), a_of(planned(looped, {"lora rank=2 seed=4"}).model, 1));
    double square = 0;
    for (const float x : a_of(out, 1)) square += static_cast<double>(x) * x;
    EXPECT_NEAR(std::sqrt(square / 32), 0.02, 0.01);
    EXPECT_EQ(base_of(out.topology.at(2, Slot::attn_q)), base_of(out.topology.at(0, Slot::attn_q)));
}

TEST(LoraMethod, WhatDoesNotFitIsRefused) {
    const Model dense = small_model(kFour, scattered_small);
    expect_error(ErrorCode::unsupported, {"layer 1", "attn.k", "has a LoRA already", "'layers'"}, [&] {
        planned(dense, {"lora slots=attn.k layers=1", "lora slots=attn"});
    });
    expect_error(ErrorCode::usage, {"layers 2", "ffn"}, [&] {
        planned(dense, {"drop layers=2 modules=ffn", "lora slots=ffn layers=2"});
    });
    expect_error(ErrorCode::usage, {"ranks"}, [&] { planned(dense, {"lora ranks=1,2"}); });
}

}  // namespace
}  // namespace refold
