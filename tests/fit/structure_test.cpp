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

TEST_F(StructureTest, EveryMethodReachesTheBudgetOfTheCache) {
    Work work;
    for (const double part : {0.7, 0.5}) {
        const Budget budget{.kv_bytes_per_token =
                                static_cast<uint64_t>(part * static_cast<double>(cache_of(model_)))};
        std::set<std::string> methods;
        for (const Structure& structure : structures_within(model_, budget, kAll, nullptr)) {
            const auto found = measured(model_, structure, budget, {"test", work, inputs_});
            ASSERT_TRUE(found) << structure.text();
            methods.insert(found->structure.settings.method);
            const Compression out =
                compress(model_, recipe_of_steps(found->structure.steps()), "test", work, inputs_);
            EXPECT_LE(cache_of(out.model), *budget.kv_bytes_per_token) << structure.text();
            EXPECT_GT(cache_of(out.model), *budget.kv_bytes_per_token * 6 / 10) << structure.text();
            EXPECT_NEAR(found->divergence, Divergence(model_, text_.held_out, 1).of(out.model), 1e-6);
        }
        // uniattn keeps the values, half of the cache, of every layer but the first of a superblock.
        EXPECT_EQ(methods.size(), part > 0.5 ? 4U : 3U);
    }
}

TEST_F(StructureTest, TypesAreChosenForTheChangedModel) {
    Work work;
    const uint64_t cache = cache_of(model_) / 2,
                   budget = std::filesystem::file_size(folder_ / "model.gguf") / 4;
    const std::vector<std::string> methods = {"narrow"};
    FitOptions options{.probe_tokens = 128, .threads = 1, .texts = {"text.txt"}, .version = "test"};
    options.structure =
        structures_within(model_, {.kv_bytes_per_token = cache}, methods, nullptr).front().steps();
    Fit fit(model_, text_, work, options);
    const Fitted fitted = fit.fit({.file_bytes = budget});
    save_model(fitted.compression.model, folder_ / "small.gguf", false);
    EXPECT_LE(std::filesystem::file_size(folder_ / "small.gguf"), budget);
    const Model small = load_model(folder_ / "small.gguf");
    EXPECT_LE(cache_of(small), cache);
    EXPECT_NEAR(fitted.divergence, Divergence(model_, text_.held_out, 1).of(small), 1e-6);
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
        return [&, bytes, methods] {
            structures_within(model_, {.kv_bytes_per_token = bytes}, methods, nullptr);
        };
    };
    EXPECT_EQ(code_of(asked(cache_of(model_), kAll), "no more than"), ErrorCode::usage);
    EXPECT_EQ(code_of(asked(1, kAll), "none of narrow, llmdrop, cla, uniattn reaches a KV cache of 1 B"),
              ErrorCode::usage);
    EXPECT_EQ(code_of(asked(cache_of(model_) / 3, {"uniattn"}), "none of uniattn reaches"), ErrorCode::usage);
}

}  // namespace
}  // namespace refold
