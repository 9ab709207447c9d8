// The predicted time of a decoded token, from a table of the speeds of types.
#include "fit/decode_time.h"

#include <gtest/gtest.h>

#include "compress/calibrated.h"
#include "compress/small_model.h"
#include "fit/budget.h"
#include "model/accounting.h"
#include "model/quantized.h"

namespace refold {
namespace {

constexpr SmallShape kThreeLayers{
    .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 128, .ff = 256, .vocab = 64};

uint64_t all_weights(const Model& model) {
    uint64_t out = 0;
    for (const auto& [name, weights] : weights_multiplied(model)) out += weights;
    return out;
}

TEST(DecodeTime, CountsTheWeightsOfEveryProduct) {
    const Model model = small_model(kThreeLayers, scattered_small);
    const auto weights = weights_multiplied(model);
    EXPECT_EQ(weights.at("blk.0.ffn_down.weight"), 128U * 256U);
    EXPECT_EQ(2 * all_weights(model), account(model).model.flops_per_token);
    // Shared heads and layers are stored once and multiplied as before.
    for (const char* step : {"direct_share ratio=0.5", "ffn_share ratio=0.4"}) {
        const Model shared = planned(model, {step}).model;
        EXPECT_LT(parameters(shared), parameters(model)) << step;
        EXPECT_EQ(all_weights(shared), all_weights(model)) << step;
    }
    // Factors, and what is left out, take less.
    for (const char* step : {"laser rho=0.25", "llmdrop count=1", "narrow ratio=0.5"}) {
        const Model smaller = planned(model, {step}).model;
        EXPECT_EQ(2 * all_weights(smaller), account(smaller).model.flops_per_token) << step;
        EXPECT_LT(all_weights(smaller), all_weights(model)) << step;
    }
}

TEST(DecodeTime, IsTheSumOfWeightsTimesTheirSpeeds) {
    const Model model = small_model(kThreeLayers, scattered_small);
    const TypeSpeeds speeds{{{{DType::F32}, 4}, {{DType::Q8_0}, 1}, {{DType::Q4_K, true}, 0.75}}, 0.5};
    const Cost cost = account(model).model;
    const auto of_attention = [](const Cost& one) {
        return 0.5 * 56 * static_cast<double>(one.attention_flops_per_context_token);  // context of 64 less 8
    };
    EXPECT_DOUBLE_EQ(token_seconds(model, speeds),
                     4 * static_cast<double>(all_weights(model)) + of_attention(cost));
    const Model small = quantize_model(model, {.type = DType::Q8_0, .embedding_type = {}}).model;
    EXPECT_DOUBLE_EQ(token_seconds(small, speeds),
                     static_cast<double>(all_weights(model)) + of_attention(cost));
    EXPECT_EQ(speeds.of(kind_of(DType::Q4_K, 128)), 0.75);
    // Not in the table: as slow for its bytes as the slowest one.
    EXPECT_GT(speeds.of(kind_of(DType::Q4_K, 256)), 0.5);
}

TEST(DecodeTime, SpeedsAreMeasuredOnceForAMachine) {
    const Model model = small_model(kThreeLayers, scattered_small);
    Work work;
    const TypeSpeeds first = measure_type_speeds(model, work, {"model", "machine", 1});
    for (const auto& [kind, seconds] : first.per_weight) EXPECT_GT(seconds, 0) << name(kind.type);
    EXPECT_TRUE(first.per_weight.contains({DType::F32}));
    EXPECT_TRUE(first.per_weight.contains({DType::Q4_0}));
    // Rows of 128 numbers are folded, those of 256 are not.
    EXPECT_TRUE(first.per_weight.contains({DType::Q4_K, true}));
    EXPECT_TRUE(first.per_weight.contains({DType::Q4_K, false}));
    EXPECT_EQ(measure_type_speeds(model, work, {"model", "machine", 1}).per_weight, first.per_weight);
}

TEST(Budget, HoldsForEveryPart) {
    const Spending spending{100, 10, 0.5};
    EXPECT_TRUE(within(spending, {}));
    EXPECT_TRUE(within(spending, {100, 10, 0.5}));
    EXPECT_FALSE(within(spending, {.file_bytes = 99}));
    EXPECT_FALSE(within(spending, {.kv_bytes_per_token = 9}));
    EXPECT_FALSE(within(spending, {.token_seconds = 0.49}));
}

}  // namespace
}  // namespace refold
