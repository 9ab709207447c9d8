// Types for a size: the budget holds, measurements serve again, the recipe gives the same file.
#include "fit/fit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "compress/calibrated.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "eval/stock.h"
#include "fit/sensitivity.h"
#include "model/accounting.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

const SmallShape kShape{
    .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 128, .ff = 256, .vocab = 64};

// Small logits, as a distribution with one likely token alone tells nothing about errors.
float weight(size_t layer, Slot slot, int64_t row, int64_t column) {
    const bool table = slot == Slot::token_embd || slot == Slot::output;
    return (table ? 0.1F : 1.0F) * scattered_small(layer, slot, row, column);
}

std::string bytes_of_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

class FitTest : public testing::Test {
protected:
    void SetUp() override {
        save_model(small_model(kShape, weight), folder_ / "model.gguf", false);
        model_ = load_model(folder_ / "model.gguf");
        text_ = random_text(model_, 16, 32);
        options_ = {.probe_tokens = 128, .threads = 1, .texts = {"text.txt"}, .version = "test"};
        whole_ = std::filesystem::file_size(folder_ / "model.gguf");
    }

    std::string work() { return folder_ / "work"; }

    TempFolder folder_;
    Model model_;
    Calibration text_;
    FitOptions options_;
    uint64_t whole_ = 0;
};

TEST_F(FitTest, WritesAtMostTheBudget) {
    Work work(this->work());
    Fit fit(model_, text_, work, options_);
    double before = 1e9;
    for (const double part : {0.22, 0.25, 0.3}) {
        const auto budget = static_cast<uint64_t>(part * static_cast<double>(whole_));
        const Fitted fitted = fit.fit(budget);
        const std::string path = folder_ / fmt::format("{}.gguf", part);
        save_model(fitted.compression.model, path, false);
        EXPECT_LE(std::filesystem::file_size(path), budget);
        EXPECT_GT(std::filesystem::file_size(path), budget * 8 / 10);
        EXPECT_LT(fitted.divergence, before) << part;
        before = fitted.divergence;
        EXPECT_NEAR(fitted.divergence, divergence(model_, load_model(path), text_.held_out, 1), 1e-6);
        // The prediction was corrected by the first result.
        EXPECT_NEAR(fitted.plan.divergence() / fitted.divergence, 1, 0.6) << part;
    }
}

// A choice by sensitivity beats one type for all matrices.
TEST_F(FitTest, IsBetterThanOneType) {
    Work work(this->work());
    const Recipe recipe = recipe_of({"quantize type=q4_0 embedding=q4_0"});
    const Compression one = compress(model_, recipe, "test", work, {&text_, 1});
    save_model(one.model, folder_ / "one.gguf", false);
    Fit fit(model_, text_, work, options_);
    // The choice needs room for its longer recipe.
    const Fitted fitted = fit.fit(std::filesystem::file_size(folder_ / "one.gguf") + 12000);
    EXPECT_LT(fitted.divergence, divergence(model_, one.model, text_.held_out, 1));
}

// Held-out text decides whether maps are solved before they are rounded; the recipe says so.
TEST_F(FitTest, SolvesMapsOnlyWhereThatHelps) {
    Work work(this->work());
    Fit fit(model_, text_, work, options_);
    const Fitted fitted = fit.fit(whole_ / 4);
    const std::string recipe = to_yaml(fit.recipe(fitted.plan));
    const std::string chosen = fitted.plan.resolve ? "resolve: auto" : "resolve: no",
                      other = fitted.plan.resolve ? "resolve: no" : "resolve: auto";
    const size_t at = recipe.find(chosen);
    ASSERT_NE(at, std::string::npos) << recipe;
    std::string changed = recipe;
    changed.replace(at, chosen.size(), other);
    Work fresh;
    const Compression compared = compress(model_, parse_recipe(changed, "r"), "test", fresh, {&text_, 1});
    EXPECT_LT(fitted.divergence, divergence(model_, compared.model, text_.held_out, 1));
}

TEST_F(FitTest, MeasurementsServeAgainAndTheRecipeReproducesTheFile) {
    const uint64_t budget = whole_ / 4;
    std::string types;
    {
        Work work(this->work());
        Fit fit(model_, text_, work, options_);
        const Fitted fitted = fit.fit(budget);
        types = fitted.plan.types;
        save_model(fitted.compression.model, folder_ / "a.gguf", false);
        Work fresh;
        save_model(
            compress(model_, parse_recipe(to_yaml(fit.recipe(fitted.plan)), "r"), "test", fresh, {&text_, 1})
                .model,
            folder_ / "b.gguf", false);
        EXPECT_EQ(bytes_of_file(folder_ / "a.gguf"), bytes_of_file(folder_ / "b.gguf"));
    }
    Work work(this->work());
    const Model same = load_model(folder_ / "./model.gguf");  // however the path is written
    Fit fit(same, text_, work, options_);
    const Fitted fitted = fit.fit(budget);
    EXPECT_EQ(fitted.plan.types, types);
    // Inputs of three layers and of the head, errors and sensitivities of 22 matrices: nothing is measured
    // again.
    EXPECT_GE(work.reused(), 4U + 2U * 22U);
}

TEST_F(FitTest, SaysTheSmallestSize) {
    Work work(this->work());
    const Fit fit(model_, text_, work, options_);
    EXPECT_EQ(code_of([&] { fit.plan(1000); }, "the smallest file has"), ErrorCode::usage);
    EXPECT_EQ(code_of([&] { fit.plan(whole_ / 20); }, "the smallest file has"), ErrorCode::usage);
}

// Files for llama.cpp give it the logits that they give here.
TEST_F(FitTest, ForLlamaCpp) {
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/hf/llama_gqa");
    const Calibration text = random_text(model, 16, 32);
    options_.layout = RowLayout::whole_blocks;
    Work work(this->work());
    Fit fit(model, text, work, options_);
    const std::string path = folder_ / "stock.gguf";
    save_model(fit.fit(account(model).model.bytes / 5).compression.model, path, false);
    const Model again = load_model(path);
    for (const auto& [name, tensor] : again.tensors) EXPECT_EQ(tensor.fold(), 1) << name;
    const auto tokens = random_tokens(40, model.config.n_vocab, 5);
    StockLlama stock(path, {.threads = 1, .context = 64, .kv_f32 = true, .flash_attention = false});
    // Both multiply quantized weights with quantized activations, in other orders.
    EXPECT_LT(scaled_difference(stock.evaluate_all(tokens), all_logits(again, tokens, {.threads = 1})), 0.05);
}

}  // namespace
}  // namespace refold
