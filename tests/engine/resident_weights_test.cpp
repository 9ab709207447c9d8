// Engines of similar models hold what is equal once, and compute what they compute alone.
#include <gtest/gtest.h>

#include "engine/compare.h"
#include "engine/random_model.h"
#include "model/validate.h"

namespace refold {
namespace {

// Rows in panels, rows of eight, rows that ggml's layouts do not have, and folded ones (Q4_K of 64 inputs).
class ResidentWeightsTest : public testing::TestWithParam<DType> {
protected:
    // The model without its layers 1 and 2.
    static Model half_of(Model model) {
        auto& layers = model.topology.layers;
        layers.erase(layers.begin() + 1, layers.begin() + 3);
        model.drop_unreferenced();
        validate(model);
        return model;
    }

    static std::unique_ptr<Engine> engine_of(const Model& model, const Engine* other) {
        EngineOptions options{.threads = 2, .context = 32};
        if (other != nullptr) options.resident = other->resident_weights();
        return make_engine(model, options);
    }

    static std::vector<float> logits_of(Engine& engine) {
        const int32_t sequence = engine.open(16).value();
        std::vector<Row> rows;
        for (int32_t i = 0; i < 12; ++i)
            rows.push_back({.sequence = sequence, .position = i, .token = 7 * i % 96, .logits = true});
        const auto logits = engine.step({.rows = rows}).logits;
        return {logits.begin(), logits.end()};
    }
};

TEST_P(ResidentWeightsTest, WhatAnotherEngineHoldsIsReadThere) {
    const Model model = random_model(GetParam(), 1), half = half_of(model);
    std::unique_ptr<Engine> whole = engine_of(model, nullptr);
    const std::unique_ptr<Engine> alone = engine_of(half, nullptr), sharing = engine_of(half, whole.get());
    const EngineMemory memory = sharing->memory();
    EXPECT_EQ(memory.weight_bytes + memory.shared_bytes, alone->memory().weight_bytes);
    // All but vectors.
    EXPECT_LT(memory.weight_bytes, alone->memory().weight_bytes / 10);
    EXPECT_EQ(alone->memory().shared_bytes, 0);
    const std::vector<float> expected = logits_of(*alone);
    EXPECT_EQ(logits_of(*sharing), expected);
    // An engine that shares with it reads the same weights, whoever ends first.
    const std::unique_ptr<Engine> third = engine_of(half, sharing.get());
    whole.reset();
    EXPECT_EQ(third->memory().shared_bytes, memory.shared_bytes);
    EXPECT_EQ(logits_of(*third), expected);
}

TEST_P(ResidentWeightsTest, OtherBytesAreNotShared) {
    const Model model = random_model(GetParam(), 1);
    Model other = half_of(random_model(GetParam(), 2));
    const std::unique_ptr<Engine> whole = engine_of(model, nullptr);
    EXPECT_EQ(engine_of(other, whole.get())->memory().shared_bytes, 0);
    // One matrix of the same bytes.
    const std::string name = tensors_of(other.topology.layers[1].at(Slot::ffn_down)).front();
    other.tensors.at(name) = model.tensor(name);
    const std::unique_ptr<Engine> sharing = engine_of(other, whole.get());
    EXPECT_EQ(sharing->memory().shared_bytes, other.tensor(name).bytes());
    EXPECT_EQ(logits_of(*sharing), logits_of(*engine_of(other, nullptr)));
}

INSTANTIATE_TEST_SUITE_P(Types, ResidentWeightsTest,
                         testing::Values(DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0,
                                         DType::Q4_K, DType::IQ4_NL),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace refold
