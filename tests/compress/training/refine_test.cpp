// Refinement with gradients: block by block, then end to end.
#include <cmath>

#include "compress/calibrated.h"
#include "compress/training/divergence.h"
#include "core/temp_folder.h"
#include "model/materialize.h"
#include "model/quantized.h"
#include "model/validate.h"

namespace refold {
namespace {

using nlohmann::json;

constexpr SmallShape kFour{
    .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 24, .vocab = 24};

Model small() { return small_model(kFour, scattered_small); }

Calibration text_of(const Model& model) { return random_text(model, 32, 16); }

// The steps, applied with the calibration text; results are mapped from folders that live as long as the
// program. `original`: of `model`; null: the model itself.
Compression compressed(const Model& model, const std::vector<std::string>& steps,
                       const Model* original = nullptr, const std::string& folder = "") {
    static std::vector<std::unique_ptr<Work>> kept;
    kept.push_back(std::make_unique<Work>(folder));
    const Calibration text = text_of(model);
    Compression out = compress(model, recipe_of(steps), "test", *kept.back(), {&text, 1, nullptr, original});
    validate(out.model);
    return out;
}

// Of text that no step has seen.
double divergence(const Model& model, const Model& original) {
    const Calibration other = random_text(original, 32, 16, 9);
    return HeldOutDivergence(original, other.held_out, 1).of(model);
}

const std::string kBlocks = "refine block_steps=40 block_learning_rate=0.005 batch=4",
                  kRefine = kBlocks + " end_steps=100 end_learning_rate=0.001";

class Refine : public testing::Test {
    void SetUp() override {
        if (!has_torch_engine()) GTEST_SKIP();
    }
};

TEST(HeldOutDivergenceTest, IsThatOfTheLogits) {
    const Model original = small(), model = planned(original, {"direct_share ratio=0.4 share=qkv"}).model;
    const Calibration text = text_of(original);
    ASSERT_EQ(text.held_out.size(), 4U);
    double sum = 0;
    for (const auto& tokens : text.held_out) {
        const EngineOptions options{.threads = 1, .context = 32, .f32 = true};
        const auto a = all_logits(original, tokens, options), b = all_logits(model, tokens, options);
        const auto vocabulary = static_cast<size_t>(original.config.n_vocab);
        for (size_t t = 0; t < tokens.size(); ++t) {
            double total_a = 0, total_b = 0, mean = 0;
            for (size_t i = 0; i < vocabulary; ++i) {
                const double x = a[t * vocabulary + i], y = b[t * vocabulary + i];
                total_a += std::exp(x);
                total_b += std::exp(y);
                mean += std::exp(x) * (x - y);
            }
            sum += mean / total_a - std::log(total_a) + std::log(total_b);
        }
    }
    const HeldOutDivergence measured(original, text.held_out, 1);
    EXPECT_NEAR(measured.of(model), sum / 64, 1e-4 * sum / 64);
    EXPECT_NEAR(measured.of(original), 0, 1e-6);
}

TEST_F(Refine, ANarrowModelPredictsBetterOnOtherTextToo) {
    const Model original = small();
    const Model narrow = compressed(original, {"narrow ratio=0.5 multiple=1"}).model;
    const Compression blocks =
        compressed(original, {"narrow ratio=0.5 multiple=1", kBlocks + " end_epochs=0"});
    const Compression both = compressed(original, {"narrow ratio=0.5 multiple=1", kRefine});
    EXPECT_EQ(both.model.topology, narrow.topology);
    EXPECT_EQ(parameters(both.model), parameters(narrow));
    const double before = divergence(narrow, original), after_blocks = divergence(blocks.model, original),
                 after = divergence(both.model, original);
    EXPECT_LT(after_blocks, 0.9 * before);
    EXPECT_LT(after, after_blocks);
    const json details = details_of(both);
    EXPECT_EQ(details["blocks"]["layers_kept"], 4);
    EXPECT_EQ(details["blocks"], details_of(blocks)["blocks"]);
    // The trainer and the streams measure the same.
    EXPECT_NEAR(details["end_to_end"]["divergence_before"].get<double>(),
                details["blocks"]["divergence_after"].get<double>(), 0.2 * before);
    EXPECT_LT(details["end_to_end"]["divergence_after"], details["end_to_end"]["divergence_before"]);
    for (const auto& [name, tensor] : narrow.tensors) {
        EXPECT_EQ(both.model.tensor(name).type, tensor.type) << name;
        EXPECT_EQ(floats_of(both.model, name) == floats_of(narrow, name), name == "token_embd.weight")
            << name;
    }
}

TEST_F(Refine, ALearningRateThatDestroysLeavesTheModelAsItWas) {
    const Model original = small();
    const Model narrow = compressed(original, {"narrow ratio=0.5 multiple=1"}).model;
    for (const char* rate : {"30", "1000"}) {
        const std::string refine = fmt::format(
            "refine block_steps=20 end_steps=20 batch=4 block_learning_rate={0} "
            "end_learning_rate={0} warmup=0",
            rate);
        // The weights that narrow computed are read from its results.
        const Compression done = compressed(original, {"narrow ratio=0.5 multiple=1", refine});
        expect_identical(done.model, narrow);
        EXPECT_EQ(details_of(done)["end_to_end"]["kept_step"], 0);
    }
}

// In layers 2 and 3 the FFN's rows that the final norm hides are halved. Gains of the norm before it that
// make up for these rows spoil the others, which are right.
TEST_F(Refine, LayersThatComeNearerAndPredictWorseGoBack) {
    constexpr size_t kHidden = 12;
    Model original = small();
    std::vector<float> gain = floats_of(original, "output_norm.weight");
    std::fill_n(gain.begin(), kHidden, 0.0F);
    original.tensors["output_norm.weight"] = float_tensor({16}, gain);
    Model changed = original;
    for (const size_t p : {2, 3}) {
        const std::string name = tensor_of(original, p, Slot::ffn_down);
        std::vector<float> down = floats_of(original, name);
        for (size_t i = 0; i < kHidden * 24; ++i) down[i] *= 0.3F;
        changed.tensors[name] = float_tensor({24, 16}, down);
    }
    const std::string norm = tensor_of(original, 0, Slot::ffn_norm);
    std::vector<float> values = floats_of(original, norm);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= i % 2 == 0 ? 1.2F : 0.8F;
    changed.tensors[norm] = float_tensor({16}, values);
    const Compression done = compressed(
        changed, {"refine train=blk.*.ffn_norm.weight end_epochs=0 block_steps=60 block_learning_rate=0.02"},
        &original);
    const json blocks = details_of(done)["blocks"];
    for (const json& layer : blocks["layers"]) EXPECT_LE(layer["error_after"], layer["error_before"]);
    const size_t kept = blocks["layers_kept"];
    EXPECT_GE(kept, 1U);
    EXPECT_LE(kept, 2U);
    EXPECT_LT(blocks["divergence_after"], blocks["divergence_before"]);
    for (size_t p = 0; p < 4; ++p) {
        const std::string name = tensor_of(original, p, Slot::ffn_norm);
        EXPECT_EQ(floats_of(done.model, name) == floats_of(changed, name), p >= kept) << p;
    }
}

TEST_F(Refine, PackedTensorsStayAndTheOthersMakeUpForThem) {
    const SmallShape shape{
        .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 64, .ff = 64, .vocab = 48};
    const Model original = small_model(shape, scattered_small);
    const Model packed = quantize_model(original, {DType::Q4_0, DType::Q4_0, 1}).model;
    const Compression done = compressed(packed,
                                        {"refine block_steps=30 end_steps=30 block_learning_rate=0.002 "
                                         "end_learning_rate=0.002 batch=4"},
                                        &original);
    for (const auto& [name, tensor] : packed.tensors) {
        EXPECT_EQ(done.model.tensor(name).type, tensor.type) << name;
        EXPECT_EQ(bytes_of(done.model, name) == bytes_of(packed, name), !is_float(tensor.type)) << name;
    }
    EXPECT_LT(divergence(done.model, original), divergence(packed, original));
}

TEST_F(Refine, WhatIsSharedStaysShared) {
    const Model original = small();
    for (const std::vector<std::string>& steps : std::vector<std::vector<std::string>>{
             {"direct_share ratio=0.4 share=qkv"}, {"recursive loops=2 norms=keep", "lora rank=2"}}) {
        SCOPED_TRACE(steps.front());
        const Model shared = planned(original, steps).model;
        std::vector<std::string> with = steps;
        with.push_back(kRefine);
        const Compression done = compressed(original, with);
        EXPECT_EQ(done.model.topology, shared.topology);
        EXPECT_EQ(parameters(done.model), parameters(shared));
        EXPECT_LT(divergence(done.model, original), divergence(shared, original));
        // Tensors of several layers are trained as well: at the latest end to end.
        for (size_t p = 0; p < 4; ++p)
            EXPECT_NE(weight(done.model, p, Slot::attn_k), weight(shared, p, Slot::attn_k)) << p;
        saved_and_loaded(done.model);
    }
}

TEST_F(Refine, WithoutBlocksOfTheirOwnOnlyTheWholeIsTrained) {
    const Model original = small();
    const Compression done = compressed(original, {"direct_share ratio=0.4 share=qkv",
                                                   "refine train=output_norm.weight end_steps=10 batch=4"});
    EXPECT_FALSE(details_of(done).contains("blocks"));
    EXPECT_EQ(details_of(done)["end_to_end"]["tensors"], 1);
}

// Finished layers, the choice among them and the whole are found again.
TEST_F(Refine, ARunThatGoesOnGivesTheSameBits) {
    const Model original = small();
    const TempFolder folder;
    const std::string work = folder / "work";
    const std::vector<std::string> steps = {"direct_share ratio=0.4 share=qkv", kRefine};
    const Model first = compressed(original, steps, nullptr, work).model;
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(work))
        if (entry.is_regular_file()) files.push_back(entry.path());
    ASSERT_EQ(files.size(), 6U);
    std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
        return std::filesystem::last_write_time(a) < std::filesystem::last_write_time(b);
    });
    // Interrupted in layer 3, which the choice and the whole follow.
    for (size_t i = 3; i < files.size(); ++i) std::filesystem::remove(files[i]);
    for (const auto& entry : std::filesystem::directory_iterator(work))
        if (entry.is_directory()) std::filesystem::remove_all(entry.path());
    expect_identical(compressed(original, steps, nullptr, work).model, first);
}

TEST(RefinePlan, KeepsTypesAndCost) {
    const Model original = small();
    const Model narrow = planned(original, {"narrow ratio=0.5 multiple=1"}).model;
    const Compression plan = planned(original, {"narrow ratio=0.5 multiple=1", kRefine});
    EXPECT_EQ(plan.after().bytes, account(narrow).model.bytes);
    for (const auto& [name, tensor] : narrow.tensors)
        EXPECT_EQ(plan.model.tensor(name).type, tensor.type) << name;
}

TEST(RefinePlan, OfTheRecipe) {
    const Recipe recipe = read_recipe(std::string(REFOLD_FIXTURES) + "/../../recipes/refine_narrow_90.yaml");
    const SmallShape shape{.layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 64, .ff = 1024};
    const Compression done = plan(small_model(shape, scattered_small), recipe);
    ASSERT_EQ(done.steps.size(), 2U);
    EXPECT_NEAR(static_cast<double>(done.after().parameters),
                0.9 * static_cast<double>(done.before.parameters),
                0.02 * static_cast<double>(done.before.parameters));
}

TEST_F(Refine, BadOptionsAreNamed) {
    const Model original = small();
    const auto refusal = [&](ErrorCode code, const std::vector<std::string>& words, const std::string& step) {
        expect_error(code, words, [&] { compressed(original, {"direct_share ratio=0.4", step}); });
    };
    refusal(ErrorCode::usage, {"block_epochs=0", "end_epochs=0"}, "refine block_epochs=0 end_epochs=0");
    refusal(ErrorCode::usage, {"train='norms,-norms,-packed'", "nothing is left"},
            "refine train=norms,-norms");
    refusal(ErrorCode::usage, {"train=output_norm.weight", "no tensor of a layer"},
            "refine train=output_norm.weight block_epochs=1 end_epochs=0");
    expect_error(ErrorCode::usage, {"block_learning_rate"},
                 [&] { recipe_of({"refine block_learning_rate=0"}); });
    expect_error(ErrorCode::usage, {"end_epochs"}, [&] { recipe_of({"refine end_epochs=-1"}); });
}

}  // namespace
}  // namespace refold
