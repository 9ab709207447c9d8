// The method quantize: types, rounding for inputs, shared tensors.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/calibrated.h"
#include "compress/quantization/measure_importance.h"
#include "compress/quantization/type_choice.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "model/load.h"
#include "model/save.h"
#include "model/validate.h"

namespace refold {
namespace {

const SmallShape kShape{
    .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 64, .ff = 96, .vocab = 48};

Model random_model() { return small_model(kShape, scattered_small); }

// Results are mapped from work folders, which live as long as the program.
Compression quantized(const Model& model, const std::vector<std::string>& steps,
                      const Model* original = nullptr) {
    static std::vector<std::unique_ptr<Work>> kept;
    kept.push_back(std::make_unique<Work>());
    static const Calibration text = random_text(random_model(), 32, 32);
    return compress(model, recipe_of(steps), "test", *kept.back(), {&text, 1, nullptr, original});
}

std::vector<float> logits(const Model& model) {
    const auto tokens = random_tokens(30, model.config.n_vocab, 77);
    return all_logits(model, tokens, {.threads = 1, .context = 32, .f32 = true});
}

double distance(const Model& a, const Model& b) {
    const auto x = logits(a), y = logits(b);
    double squares = 0;
    for (size_t i = 0; i < x.size(); ++i)
        squares += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    return std::sqrt(squares);
}

TEST(Quantize, ForTheInputsIsNearerThanToNearest) {
    const Model model = random_model();
    const double nearest = distance(
                     quantized(model, {"quantize type=q4_0 rounding=nearest embedding=keep"}).model, model),
                 feedback = distance(quantized(model, {"quantize type=q4_0 resolve=no embedding=keep"}).model,
                                     model),
                 solved = distance(quantized(model, {"quantize type=q4_0 embedding=keep"}).model, model);
    EXPECT_LT(feedback, 0.9 * nearest);
    EXPECT_LT(solved, feedback);
}

TEST(Quantize, ForAnImportanceMatrix) {
    const Model model = random_model();
    const std::string step = "quantize type=q4_0 embedding=keep rounding=";
    const Compression measured = quantized(model, {step + "imatrix"});
    EXPECT_LT(distance(measured.model, model), distance(quantized(model, {step + "nearest"}).model, model));

    const TempFolder folder;
    const Calibration text = random_text(random_model(), 32, 32);
    save_importance_matrix(measure_importance(model, text, 1), folder / "imatrix.gguf", false);
    const Compression read = quantized(model, {step + "imatrix imatrix=" + (folder / "imatrix.gguf")});
    for (const auto& [tensor_name, tensor] : measured.model.tensors) {
        const TensorBytes a(tensor), b(read.model.tensor(tensor_name));
        EXPECT_TRUE(std::ranges::equal(a.bytes(), b.bytes())) << tensor_name;
    }
    const SmallShape wider{
        .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 96, .ff = 96, .vocab = 48};
    EXPECT_EQ(code_of(
                  [&] {
                      quantized(small_model(wider, scattered_small),
                                {step + "imatrix imatrix=" + (folder / "imatrix.gguf")});
                  },
                  "blk.0"),
              ErrorCode::input);
}

TEST(Quantize, SomeTypesNeedToKnowTheInputs) {
    const SmallShape wide{
        .layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 64, .embd = 256, .ff = 256, .vocab = 24};
    const Model model = small_model(wide, scattered_small);
    const Calibration text = random_text(model, 8, 32);
    const auto run = [&](const std::string& rounding) {
        Work work;
        return compress(model, recipe_of({"quantize type=iq2_xxs embedding=q8_0 rounding=" + rounding}),
                        "test", work, {&text, 1});
    };
    EXPECT_EQ(code_of([&] { run("nearest"); }, "cannot be rounded to nearest without an importance matrix"),
              ErrorCode::usage);
    for (const char* rounding : {"gptq", "imatrix"})
        EXPECT_EQ(run(rounding).model.tensor("blk.0.ffn_down.weight").type, DType::IQ2_XXS);
}

TEST(Quantize, GivesTensorsTheirTypes) {
    const Model model = random_model();
    const Compression out = quantized(model, {"quantize type=q4_0 embedding=q8_0 rounding=nearest"});
    const auto type_of = [](const Model& m, const char* tensor) { return m.tensor(tensor).type; };
    EXPECT_EQ(type_of(out.model, "blk.0.attn_q.weight"), DType::Q4_0);
    EXPECT_EQ(type_of(out.model, "token_embd.weight"), DType::Q8_0);
    EXPECT_EQ(type_of(out.model, "blk.0.attn_norm.weight"), DType::F32);

    const TypeChoice choice =
        choose_types(model, {"q4_0", "keep", "ffn.down=q5_1 ffn.down@0,2=q8_0 attn.v@1=iq4_nl"});
    EXPECT_EQ(choice.types.at("blk.0.ffn_down.weight"), DType::Q8_0);
    EXPECT_EQ(choice.types.at("blk.1.ffn_down.weight"), DType::Q5_1);
    EXPECT_EQ(choice.types.at("blk.1.attn_v.weight"), DType::IQ4_NL);
    EXPECT_EQ(choice.types.at("blk.2.attn_v.weight"), DType::Q4_0);
    EXPECT_FALSE(choice.types.contains("token_embd.weight"));
    EXPECT_TRUE(choice.fallbacks.empty());
    // Rows of 64 and 96 elements are no whole blocks of 256, but four or eight of them are.
    const TypeChoice large = choose_types(model, {"q3_k", "keep", "attn.v=iq3_s"});
    EXPECT_EQ(large.types.at("blk.0.attn_q.weight"), DType::Q3_K);
    EXPECT_EQ(large.types.at("blk.0.attn_v.weight"), DType::IQ3_S);
    EXPECT_TRUE(large.fallbacks.empty());
    // Four rows of 32.
    const TypeChoice few =
        choose_types(small_model({.layers = 1, .embd = 32}, scattered_small), {"q3_k", "keep", ""});
    EXPECT_EQ(few.types.at("blk.0.attn_k.weight"), DType::Q4_0);
    EXPECT_EQ(few.types.at("blk.0.ffn_up.weight"), DType::Q3_K);
    EXPECT_EQ(few.fallbacks.at(0), "blk.0.attn_q.weight: Q4_0 for Q3_K");
}

TEST(Quantize, RefusesTypesThatItCannotGive) {
    const Model model = random_model();
    const auto refused = [&](const WantedTypes& wanted, const char* message) {
        EXPECT_EQ(code_of([&] { choose_types(model, wanted); }, message), ErrorCode::usage) << message;
    };
    refused({"q9", "auto", ""}, "unknown type 'q9'");
    refused({"q4_0", "auto", "attn.w=q4_0"}, "unknown slot 'attn.w'");
    refused({"q4_0", "auto", "attn.q"}, "expected SLOT=TYPE");
    refused({"q4_0", "auto", "attn.q@9=q4_0"}, "the model has layers 0 to 2");
    refused({"q4_0", "auto", "attn.q=q9"}, "unknown type 'q9'");
}

// Shared heads are rounded once, for all layers that use them.
TEST(Quantize, SharedTensorsStayShared) {
    const Model model = random_model();
    const std::string share = "direct_share ratio=0.34";
    const Compression plain = quantized(model, {share, "quantize type=q4_0 rounding=nearest embedding=keep"}),
                      feedback = quantized(model, {share, "quantize type=q4_0 resolve=no embedding=keep"});
    EXPECT_EQ(plain.after().bytes, feedback.after().bytes);
    EXPECT_EQ(plain.model.topology, feedback.model.topology);
    const Model shared = planned(model, {share}).model;
    EXPECT_LT(distance(feedback.model, shared), distance(plain.model, shared));
}

// A block that runs twice is rounded for the inputs of both loops: more for the first one alone would ruin
// the second.
TEST(Quantize, LoopedBlocksAreRoundedForAllLoops) {
    const Model model = small_model(
        {.layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 64, .ff = 96, .vocab = 48},
        scattered_small);
    const std::string loop = "recursive loops=2";
    const Model looped = planned(model, {loop}).model;
    const double nearest = distance(
                     quantized(model, {loop, "quantize type=q4_0 rounding=nearest embedding=keep"}).model,
                     looped),
                 feedback = distance(
                     quantized(model, {loop, "quantize type=q4_0 resolve=no embedding=keep"}).model, looped);
    EXPECT_LT(feedback, nearest);
}

TEST(Quantize, OfFactorsAndEveryArchitecture) {
    for (const auto& name : fixture_decoders()) {
        const Model model = fixture_model(name);
        const Calibration text = random_text(model, 8, 16);
        Work work;
        const Compression out =
            compress(model, recipe_of({"quantize type=q8_0 embedding=q8_0"}), "test", work, {&text, 1});
        EXPECT_LE(out.after().bytes, out.before.bytes) << name;
        EXPECT_EQ(plan(model, recipe_of({"quantize type=q8_0 embedding=q8_0"})).after().bytes,
                  out.after().bytes)
            << name;
    }
    for (const char* method : {"laser rank=32 layers=0-1", "tensorllm ranks=32,8,4 layers=1-2"}) {
        const Model factored = quantized(random_model(), {method}).model;
        const Compression out =
            quantized(random_model(), {method, "quantize type=q8_0 embedding=q8_0 resolve=no"});
        double squares = 0;
        for (const float x : logits(factored)) squares += static_cast<double>(x) * static_cast<double>(x);
        EXPECT_LT(distance(out.model, factored), 0.1 * std::sqrt(squares)) << method;
        EXPECT_LT(out.after().bytes, out.steps[0].cost.bytes) << method;
    }
}

TEST(Quantize, GoesOnAfterAnInterruption) {
    const TempFolder folder;
    const Model model = random_model();
    const Calibration text = random_text(model, 8, 32);
    const Recipe recipe = recipe_of({"quantize type=q4_0 embedding=q5_0"});
    Work first(folder / "work");
    const Compression whole = compress(model, recipe, "test", first, {&text, 1});
    save_model(whole.model, folder / "whole.gguf", false);
    EXPECT_EQ(first.reused(), 0U);
    Work second(folder / "work");
    const Compression again = compress(model, recipe, "test", second, {&text, 1});
    save_model(again.model, folder / "again.gguf", false);
    // The head's inputs, the embedding, and four groups of matrices in each layer.
    EXPECT_EQ(second.reused(), 2U + 3U * 4U);
    expect_identical(load_model(folder / "again.gguf"), load_model(folder / "whole.gguf"));
}

}  // namespace
}  // namespace refold
