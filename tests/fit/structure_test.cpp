// A smaller KV cache: every method reaches the budget, the best one is taken, and types are chosen for it.
#include "fit/structure.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "compress/calibrated.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "fit/fit.h"
#include "fit/sensitivity.h"
#include "model/accounting.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

const std::vector<std::string> kAll(kCacheMethods.begin(), kCacheMethods.end());

uint64_t cache_of(const Model& model) { return account(model).model.kv_bytes_per_token; }

class StructureTest : public testing::Test {
protected:
    void SetUp() override {
        constexpr SmallShape kLayers{
            .layers = 6, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 128, .ff = 256, .vocab = 64};
        save_model(small_model(kLayers, scattered_small), folder_ / "model.gguf", false);
        model_ = load_model(folder_ / "model.gguf");
        text_ = random_text(model_, 24, 32);
        inputs_ = {.calibration = &text_, .threads = 1};
    }

    TempFolder folder_;
    Model model_;
    Calibration text_;
    StepInputs inputs_;
};

TEST_F(StructureTest, EveryMethodReachesTheBudgetAndTheBestIsFirst) {
    Work work;
    for (const double part : {0.7, 0.5}) {
        const auto budget = static_cast<uint64_t>(part * static_cast<double>(cache_of(model_)));
        const auto structures = cache_structures(model_, budget, kAll);
        // uniattn keeps the values, half of the cache, of every layer but the first of a superblock.
        EXPECT_EQ(structures.size(), part > 0.5 ? 4U : 3U);
        const auto measured = measured_structures(model_, structures, "test", work, inputs_);
        ASSERT_EQ(measured.size(), structures.size());
        for (const MeasuredStructure& m : measured) {
            const Compression out =
                compress(model_, recipe_of_steps(m.structure.steps), "test", work, inputs_);
            EXPECT_LE(cache_of(out.model), budget) << m.structure.method;
            EXPECT_GT(cache_of(out.model), budget * 6 / 10) << m.structure.method;
            EXPECT_NEAR(m.divergence, divergence(model_, out.model, text_.held_out, 1), 1e-6);
            EXPECT_GE(m.divergence, measured.front().divergence);
        }
    }
}

TEST_F(StructureTest, TypesAreChosenForTheChangedModel) {
    Work work;
    const uint64_t cache = cache_of(model_) / 2,
                   budget = std::filesystem::file_size(folder_ / "model.gguf") / 4;
    const std::vector<std::string> methods = {"narrow"};
    FitOptions options{.probe_tokens = 128, .threads = 1, .texts = {"text.txt"}, .version = "test"};
    options.structure = cache_structures(model_, cache, methods).front().steps;
    Fit fit(model_, text_, work, options);
    const Fitted fitted = fit.fit(budget);
    save_model(fitted.compression.model, folder_ / "small.gguf", false);
    EXPECT_LE(std::filesystem::file_size(folder_ / "small.gguf"), budget);
    const Model small = load_model(folder_ / "small.gguf");
    EXPECT_LE(cache_of(small), cache);
    EXPECT_NEAR(fitted.divergence, divergence(model_, small, text_.held_out, 1), 1e-6);
    // The recipe has both, and gives the same file.
    const Recipe recipe = parse_recipe(to_yaml(fit.recipe(fitted.plan)), "recipe");
    ASSERT_EQ(recipe.steps.size(), 2U);
    Work fresh;
    save_model(compress(model_, recipe, "test", fresh, inputs_).model, folder_ / "again.gguf", false);
    const auto bytes = [](const std::string& path) {
        std::ifstream in(path, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(in), {});
    };
    EXPECT_TRUE(bytes(folder_ / "small.gguf") == bytes(folder_ / "again.gguf"));
}

TEST_F(StructureTest, SaysWhatCannotBe) {
    const auto asked = [&](uint64_t bytes, const std::vector<std::string>& methods) {
        return [&, bytes, methods] { cache_structures(model_, bytes, methods); };
    };
    EXPECT_EQ(code_of(asked(cache_of(model_), kAll), "no more than"), ErrorCode::usage);
    EXPECT_EQ(code_of(asked(1, kAll), "none of narrow, llmdrop, cla, uniattn brings"), ErrorCode::usage);
    EXPECT_EQ(code_of(asked(cache_of(model_) / 3, {"uniattn"}), "none of uniattn brings"), ErrorCode::usage);
}

}  // namespace
}  // namespace refold
