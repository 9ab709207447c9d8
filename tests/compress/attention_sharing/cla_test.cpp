// cla, and the published settings of UniAttn's comparison.
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/attention_sharing/superblocks.h"
#include "compress/calibrated.h"
#include "core/temp_folder.h"
#include "model/load.h"
#include "model/paper_model.h"

namespace refold {
namespace {

const SmallShape kEight{.layers = 8, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .vocab = 24};

TEST(Cla, ReusingLayersHaveNoKeysAndValues) {
    const Model model = small_model(kEight, scattered_small);
    const Compression result = planned(model, {"cla superblocks=2-4"});
    const Topology& topology = result.model.topology;
    for (const size_t layer : {3, 4}) {
        EXPECT_EQ(topology.source(layer).kv, 2U);
        EXPECT_FALSE(topology.source(layer).probabilities);
        for (const Slot slot : {Slot::attn_k, Slot::attn_v}) EXPECT_FALSE(topology.has(layer, slot));
        for (const Slot slot : {Slot::attn_q, Slot::attn_o}) EXPECT_TRUE(topology.has(layer, slot));
    }
    EXPECT_EQ(topology.sources.size(), 2U);
    EXPECT_EQ(result.before.parameters - result.after().parameters, 2U * 2 * 16 * 8);
    EXPECT_EQ(result.after().kv_bytes_per_token * 8, result.before.kv_bytes_per_token * 6);
    saved_and_loaded(result.model);
}

TEST(Cla, FullHalfAndPairs) {
    const Model model = small_model({.layers = 30, .ff = 2}, scattered_small);
    const auto sources = [&](const std::string& step) {
        std::map<size_t, size_t> out;
        for (const auto& [layer, source] : planned(model, {step}).model.topology.sources)
            out[layer] = *source.kv;
        return out;
    };
    using Sources = std::map<size_t, size_t>;
    EXPECT_EQ(
        sources("cla"),
        (Sources{{19, 18}, {20, 18}, {21, 18}, {23, 22}, {24, 22}, {25, 22}, {27, 26}, {28, 26}, {29, 26}}));
    EXPECT_EQ(sources("cla variant=half"),
              (Sources{{23, 22}, {24, 22}, {25, 22}, {27, 26}, {28, 26}, {29, 26}}));
    EXPECT_EQ(sources("cla size=2"),
              (Sources{{17, 16}, {19, 18}, {21, 20}, {23, 22}, {25, 24}, {27, 26}, {29, 28}}));
    EXPECT_EQ(sources("cla superblocks=0-1,4-5 variant=half"), (Sources{{5, 4}}));
}

TEST(Cla, EqualKeysValuesAndInputsChangeNothing) {
    const Model model = equal_attention(kEight, 3, {Slot::attn_k, Slot::attn_v});
    const auto before = outputs_of(model);
    EXPECT_LE(largest_difference(outputs_of(planned(model, {"cla superblocks=3-4"}).model), before), 2e-5);
    EXPECT_GT(largest_difference(outputs_of(planned(model, {"cla superblocks=4-5"}).model), before), 1e-2);
}

TEST(Cla, EveryDecoder) {
    for (const auto& name : fixture_decoders()) {
        SCOPED_TRACE(name);
        const Model model = fixture_model(name);
        std::vector<std::string> steps = {"cla superblocks=0-1"};
        // W_c reads the norm before the attention.
        if (model.topology.has(0, Slot::attn_norm)) steps.emplace_back("compensation compensation=zero");
        const Model shared = planned(model, steps).model;
        const auto outputs = outputs_of(shared);
        EXPECT_TRUE(std::all_of(outputs.begin(), outputs.end(), [](float x) { return std::isfinite(x); }));
        EXPECT_EQ(outputs_of(saved_and_loaded(shared)), outputs);
    }
}

TEST(Cla, WhatCannotShareIsRefused) {
    const Model model = small_model(kEight, scattered_small);
    expect_error(ErrorCode::unsupported, {"cla", "layer 3", "no attention"}, [&] {
        planned(model, {"drop layers=3", "cla superblocks=2-4"});
    });
    expect_error(ErrorCode::unsupported, {"layer 5", "already"}, [&] {
        planned(model, {"uniattn superblocks=4-5", "cla superblocks=5-6"});
    });
    expect_error(ErrorCode::usage, {"full | half"}, [&] { planned(model, {"cla variant=quarter"}); });
}

// ---- the recipes ----

Recipe recipe(const std::string& name) {
    return read_recipe(std::string(REFOLD_FIXTURES) + "/../../recipes/" + name + ".yaml");
}

// Planned on the model that ends the recipe's name.
Compression of_recipe(const std::string& name) {
    const std::map<std::string, std::string> models = {{"llama2_7b", "llama2-7b"},
                                                       {"llama31_8b", "llama31-8b"},
                                                       {"mistral_7b", "mistral-7b"},
                                                       {"gemma2_9b", "gemma2-9b"}};
    const auto model = std::find_if(models.begin(), models.end(),
                                    [&](const auto& entry) { return name.ends_with("_" + entry.first); });
    return plan(paper_model(model->second), recipe(name));
}

double kv_left(const Compression& compression) {
    return static_cast<double>(compression.after().kv_bytes_per_token) /
           static_cast<double>(compression.before.kv_bytes_per_token);
}

std::vector<std::string> methods_of(const Recipe& recipe) {
    std::vector<std::string> names;
    for (const RecipeStep& step : recipe.steps) names.emplace_back(step.method->name);
    return names;
}

// Section 4.2: W_c and its first stage are UniAttn's alone; the baselines are post-trained as they are.
TEST(PublishedSettings, BaselinesAreTrainedWithoutCompensation) {
    using Names = std::vector<std::string>;
    EXPECT_EQ(methods_of(recipe("uniattn_train_llama2_7b")), (Names{"uniattn", "train", "train"}));
    EXPECT_EQ(methods_of(recipe("cla_train_half_llama2_7b")), (Names{"cla", "train"}));
    EXPECT_EQ(methods_of(recipe("llmdrop_train_half_llama2_7b")), (Names{"drop", "train"}));
}

// Layers with attention of their own, and the remaining KV cache, by Tables 1, 10 and 11.
TEST(PublishedSettings, KvCacheAsInThePaper) {
    for (const std::string model : {"llama2_7b", "llama31_8b", "mistral_7b"}) {
        SCOPED_TRACE(model);
        const Compression uniattn = of_recipe("uniattn_" + model);
        EXPECT_NEAR(kv_left(uniattn), 0.8125, 1e-9);
        EXPECT_EQ(uniattn.model.topology.sources.size(), 12U);
        EXPECT_EQ(uniattn.model.topology.source(31).probabilities, 28U);
        EXPECT_TRUE(uniattn.model.topology.has(17, Slot::attn_comp));
        EXPECT_NEAR(kv_left(of_recipe("cla_full_" + model)), 0.625, 1e-9);
        EXPECT_NEAR(kv_left(of_recipe("cla_half_" + model)), 0.8125, 1e-9);
        EXPECT_NEAR(kv_left(of_recipe("llmdrop_full_" + model)), 0.625, 1e-9);
        EXPECT_NEAR(kv_left(of_recipe("llmdrop_half_" + model)), 0.8125, 1e-9);
    }
    EXPECT_NEAR(kv_left(of_recipe("uniattn_gemma2_9b")), 0.821, 5e-4);
    EXPECT_NEAR(kv_left(of_recipe("cla_full_gemma2_9b")), 0.643, 5e-4);
    EXPECT_NEAR(kv_left(of_recipe("cla_half_gemma2_9b")), 0.786, 5e-4);
    EXPECT_NEAR(kv_left(of_recipe("llmdrop_full_gemma2_9b")), 0.643, 5e-4);
    EXPECT_NEAR(kv_left(of_recipe("llmdrop_half_gemma2_9b")), 0.810, 5e-4);
    EXPECT_FALSE(of_recipe("llmdrop_half_llama2_7b").model.topology.has(22, Slot::attn_o));
    const Topology gemma = of_recipe("uniattn_gemma2_9b").model.topology;
    EXPECT_TRUE(gemma.source(41).own());
    // The authors' program adds W_c before the norm after the attention.
    EXPECT_TRUE(gemma.has(22, Slot::attn_comp_norm));
    EXPECT_FALSE(gemma.has(22, Slot::attn_comp));
}

}  // namespace
}  // namespace refold
