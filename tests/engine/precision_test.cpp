// Products in BF16: with weights in F16 they are those of the same weights rounded to BF16, near those in
// float32, and equal in any company.
#include <gtest/gtest.h>

#include <random>

#include "core/code_of.h"
#include "core/error.h"
#include "engine/compare.h"
#include "engine/expression_models.h"
#include "engine/ggml/row_panels.h"
#include "engine/synthetic_models.h"
#include "io/dtype.h"
#include "model/small_model.h"

namespace refold {
namespace {

constexpr int64_t kContext = 64;

Model with_matrices_in(Model model, DType type) {
    for (auto& [name, tensor] : model.tensors) {
        if (tensor.rows() == 1) continue;
        std::vector<float> values(static_cast<size_t>(tensor.elements()));
        dequantize(tensor.type, TensorBytes(tensor).bytes(), values);
        auto bytes = quantize(type, values, tensor.row_elements());
        tensor.type = type;
        tensor.mapped = {};
        tensor.produce = [bytes = std::move(bytes)] { return bytes; };
    }
    return model;
}

Model half_precision_model() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    return with_matrices_in(
        small_model({.layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 128, .vocab = 48},
                    [&](size_t, Slot, int64_t, int64_t) { return 0.08F * normal(random); }),
        DType::F16);
}

// A layer's matrices with heads of another one, which are read in runs.
Model with_shared_heads() {
    Model model = half_precision_model();
    const auto& other = std::get<Dense>(model.topology.layers[0].at(Slot::attn_q)).tensor;
    Slots& layer = model.topology.layers[2];
    const auto& own = std::get<Dense>(layer.at(Slot::attn_q)).tensor;
    layer[Slot::attn_q] = Heads{{{own, 0, 1}, {other, 0, 2}, {own, 3, 1}}};
    validate(model);
    return model;
}

TEST(Precision, IsThatOfWeightsInBf16) {
    for (const Model& model : {half_precision_model(), with_shared_heads()}) {
        const auto tokens = random_tokens(30, model.config.n_vocab, 4);
        const EngineOptions stored{.threads = 2, .context = kContext};
        EngineOptions bf16 = stored;
        bf16.precision = Precision::bf16;
        const auto exact = all_logits(model, tokens, stored), got = all_logits(model, tokens, bf16);
        EXPECT_EQ(got, all_logits(with_matrices_in(model, DType::BF16), tokens, stored));
        EXPECT_GT(scaled_difference(got, exact), 0);
        EXPECT_LT(scaled_difference(got, exact), 0.03);
    }
}

TEST(Precision, IsTheSameForOneTokenAndMany) {
    if (!row_panels::supports(GGML_TYPE_BF16, 32)) GTEST_SKIP() << "this CPU has no products of BF16 pairs";
    for (const Model& model : {half_precision_model(), with_shared_heads()}) {
        const auto tokens = random_tokens(30, model.config.n_vocab, 4);
        const auto logits = [&](int64_t chunk) {
            return all_logits(
                model, tokens,
                {.threads = 2, .context = kContext, .chunk = chunk, .precision = Precision::bf16});
        };
        // Attention adds up in another order for many tokens.
        EXPECT_LT(scaled_difference(logits(1), logits(30)), 1e-2);
    }
}

TEST(Precision, OfTheTorchEngineIsFloat32) {
    EXPECT_EQ(code_of(
                  [] {
                      make_engine(half_precision_model(),
                                  {.kind = EngineKind::torch, .precision = Precision::bf16});
                  },
                  "leave out --precision"),
              ErrorCode::unsupported);
}

}  // namespace
}  // namespace refold
