// Types for a size: the budget holds, measurements serve again, the recipe gives the same file.
#include "fit/fit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "compress/calibrated.h"
#include "compress/quantization/row_types.h"
#include "compress/rounding/gptq_rounding.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "eval/stock.h"
#include "fit/candidates.h"
#include "fit/flat_logits.h"
#include "fit/sensitivity.h"
#include "model/accounting.h"
#include "model/load.h"
#include "model/materialize.h"
#include "model/row_parts.h"
#include "model/save.h"

namespace refold {
namespace {

const SmallShape kShape{
    .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 128, .ff = 256, .vocab = 64};

std::string bytes_of_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

class FitTest : public testing::Test {
protected:
    void SetUp() override {
        save_model(small_model(kShape, with_flat_logits), folder_ / "model.gguf", false);
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
        const Fitted fitted = fit.fit({.file_bytes = budget});
        const std::string path = folder_ / fmt::format("{}.gguf", part);
        save_model(fitted.compression.model, path, false);
        EXPECT_LE(std::filesystem::file_size(path), budget);
        EXPECT_GT(std::filesystem::file_size(path), budget * 8 / 10);
        EXPECT_LT(fitted.divergence, before) << part;
        before = fitted.divergence;
        EXPECT_NEAR(fitted.divergence, Divergence(model_, text_.held_out, 1).of(load_model(path)), 1e-6);
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
    const Fitted fitted = fit.fit({.file_bytes = std::filesystem::file_size(folder_ / "one.gguf") + 12000});
    EXPECT_LT(fitted.divergence, Divergence(model_, text_.held_out, 1).of(one.model));
}

// Held-out text decides whether maps are solved before they are rounded; the recipe says so.
TEST_F(FitTest, SolvesMapsOnlyWhereThatHelps) {
    Work work(this->work());
    Fit fit(model_, text_, work, options_);
    const Fitted fitted = fit.fit({.file_bytes = whole_ / 4});
    const std::string recipe = to_yaml(fit.recipe(fitted.plan));
    const std::string chosen = fitted.plan.resolve ? "resolve: auto" : "resolve: no",
                      other = fitted.plan.resolve ? "resolve: no" : "resolve: auto";
    const size_t at = recipe.find(chosen);
    ASSERT_NE(at, std::string::npos) << recipe;
    std::string changed = recipe;
    changed.replace(at, chosen.size(), other);
    Work fresh;
    const Compression compared = compress(model_, parse_recipe(changed, "r"), "test", fresh, {&text_, 1});
    EXPECT_LT(fitted.divergence, Divergence(model_, text_.held_out, 1).of(compared.model));
}

TEST_F(FitTest, MeasurementsServeAgainAndTheRecipeReproducesTheFile) {
    const uint64_t budget = whole_ / 4;
    std::string types;
    {
        Work work(this->work());
        Fit fit(model_, text_, work, options_);
        const Fitted fitted = fit.fit({.file_bytes = budget});
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
    const Fitted fitted = fit.fit({.file_bytes = budget});
    EXPECT_EQ(fitted.plan.types, types);
    // Inputs of three layers and of the head, errors and sensitivities of 22 matrices: nothing is measured
    // again.
    EXPECT_GE(work.reused(), 4U + 2U * 22U);
}

TEST_F(FitTest, SaysTheSmallestSize) {
    Work work(this->work());
    const Fit fit(model_, text_, work, options_);
    EXPECT_EQ(code_of([&] { fit.plan({.file_bytes = 1000}); }, "the smallest file has"), ErrorCode::usage);
    EXPECT_EQ(code_of([&] { fit.plan({.file_bytes = whole_ / 20}); }, "the smallest file has"),
              ErrorCode::usage);
}

// Speeds as on a machine where folded rows and large types are slow.
TEST_F(FitTest, HoldsABudgetOfSecondsAsWell) {
    for (const FitTensor& tensor : fit_tensors(model_, RowLayout::or_folded)) {
        for (const Candidate& candidate : tensor.candidates) {
            const auto kind = kind_of(candidate.type, model_.tensor(tensor.name).row_elements());
            const double bits = 8.0 * static_cast<double>(block_bytes(kind.type)) /
                                static_cast<double>(block_elements(kind.type));
            if (!options_.speeds) options_.speeds = TypeSpeeds{{{{DType::F32}, 32}}, 0};
            options_.speeds->per_weight[kind] = bits + (kind.folded ? 4 : 0);
        }
    }
    Work work(this->work());
    Fit fit(model_, text_, work, options_);
    const uint64_t bytes = whole_ / 4;
    const FitPlan free = fit.plan({.file_bytes = bytes});
    double before = free.divergence();
    for (const double part : {1.0, 0.9, 0.8}) {
        const Budget budget{.file_bytes = bytes, .token_seconds = part * free.token_seconds};
        const FitPlan plan = fit.plan(budget);
        EXPECT_LE(plan.bytes, bytes);
        EXPECT_LE(plan.token_seconds, *budget.token_seconds);
        EXPECT_GT(plan.token_seconds, 0.95 * *budget.token_seconds) << part;
        EXPECT_GE(plan.divergence(), before);
        before = plan.divergence();
        const Model made = compress(model_, fit.recipe(plan), "test", work, {&text_, 1}).model;
        EXPECT_NEAR(token_seconds(made, *options_.speeds), plan.token_seconds, 1e-6 * plan.token_seconds);
    }
    // Seconds that plain choices of bytes alone would not meet so cheaply: folded rows make way.
    double smaller = 1e9;
    for (uint64_t less = bytes; less > bytes / 2; less -= bytes / 200) {
        try {
            const FitPlan plan = fit.plan({.file_bytes = less});
            if (plan.token_seconds <= 0.8 * free.token_seconds)
                smaller = std::min(smaller, plan.divergence());
        } catch (const Error&) {
            break;
        }
    }
    EXPECT_LT(before, smaller);

    const auto impossible = [&] {
        fit.plan({.file_bytes = bytes, .token_seconds = 1e-3 * free.token_seconds});
    };
    EXPECT_EQ(code_of(impossible, "the fastest one is"), ErrorCode::usage);
}

TEST(FitFactors, AreCorrectedByPartsThatMatter) {
    const FitFactors now = {.matrices = 0.25, .tables = 1};
    const FitFactors both = corrected_factors(now, {0.02, 0.03}, {0.01, 0.06});
    EXPECT_DOUBLE_EQ(both.matrices, 0.125);
    EXPECT_DOUBLE_EQ(both.tables, 2);
    // Matrices whose types lose nothing: what is measured beside the table's loss is not theirs.
    const FitFactors tables = corrected_factors(now, {1e-5, 0.01}, {0.001, 0.005});
    EXPECT_DOUBLE_EQ(tables.matrices, 0.25);
    EXPECT_DOUBLE_EQ(tables.tables, 0.5);
    const FitFactors matrices = corrected_factors(now, {0.01, 0}, {0.02, 0});
    EXPECT_DOUBLE_EQ(matrices.matrices, 0.5);
    EXPECT_DOUBLE_EQ(matrices.tables, 1);
    EXPECT_DOUBLE_EQ(corrected_factors(now, {0, 0}, {0, 0}).matrices, 0.25);
}

// Of a vocabulary, some rows stand for all; later rows are larger here, and first ones used more, so it
// matters which.
TEST(FitErrors, OfALargeTableAreThoseOfAllRowsAsTextUsesThem) {
    const int64_t vocab = 20000, width = 32;
    const SmallShape shape{
        .layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 32, .embd = width, .ff = 32, .vocab = vocab};
    const Model model = small_model(shape, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        const float larger = slot == Slot::token_embd ? static_cast<float>(row) / 1e4F : 1.0F;
        return larger * with_flat_logits(layer, slot, row, column);
    });
    for (const bool alike : {true, false}) {
        Calibration text = random_text(model, 4, 32);
        text.occurrences.assign(static_cast<size_t>(vocab), 1);
        for (size_t row = 0; row < text.occurrences.size() && !alike; ++row)
            text.occurrences[row] = 30000 / static_cast<int64_t>(row + 1);
        const std::vector<double> use = expected_use(text.occurrences, vocab);
        Work work;
        const Measurement on{work, text, "model", 1};
        const Candidates candidates(model, on, RowLayout::whole_blocks);
        const UnquantizedGrams::Place head = {kWholeModel, Tap::layer_input};
        const std::vector<double> gram = UnquantizedGrams(model, on, {head}).at(head);
        const FitTensor& table = candidates.tensors().back();
        ASSERT_EQ(table.slot, Slot::token_embd);
        const std::vector<float> weights = floats_of(model, table.name);
        for (const Candidate& candidate : table.candidates) {
            const std::vector<float> rounded =
                nearest_rounded(weights, {gram, width, width}, candidate.type).values;
            double all = 0;
            for (size_t row = 0; row < use.size(); ++row) {
                const size_t first = row * width;
                for (size_t i = 0; i < width; ++i) {
                    for (size_t j = 0; j < width; ++j)
                        all += use[row] * static_cast<double>(vocab) * gram[i * width + j] *
                               static_cast<double>(rounded[first + i] - weights[first + i]) *
                               static_cast<double>(rounded[first + j] - weights[first + j]);
                }
            }
            EXPECT_NEAR(candidate.error / all, 1, 0.03) << name(candidate.type) << alike;
        }
    }
}

// Rows that text uses more count for more; few enough here that all of them are tried.
TEST(FitErrors, OfATableAreThoseOfItsPartsAsTextUsesThem) {
    const int64_t vocab = 2048, width = 32;
    const SmallShape shape{
        .layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 32, .embd = width, .ff = 32, .vocab = vocab};
    const Model model = small_model(shape, with_flat_logits);
    Calibration text = random_text(model, 4, 32);
    text.occurrences.assign(static_cast<size_t>(vocab), 1);
    for (size_t row = 0; row < text.occurrences.size(); row += 3) text.occurrences[row] = 40;
    Work work;
    const Measurement on{work, text, "model", 1};
    const Candidates candidates(model, on, RowLayout::or_folded);
    const UnquantizedGrams::Place head = {kWholeModel, Tap::layer_input};
    const std::vector<double> gram = UnquantizedGrams(model, on, {head}).at(head);
    const std::vector<double> use = expected_use(text.occurrences, vocab);
    const std::vector<int32_t> order = rows_by_use(text.occurrences, vocab);
    int64_t next = 0, parts = 0;
    for (const FitTensor& part : candidates.tensors()) {
        if (part.slot != Slot::token_embd) continue;
        ++parts;
        EXPECT_EQ(part.first, next);
        next += part.rows;
        const std::vector<float> weights = floats_of(model, part.name);
        for (const Candidate& candidate : part.candidates) {
            if (candidate.type != DType::Q4_0) continue;
            const auto ids = static_cast<size_t>(part.first + part.rows < vocab ? 4 * part.rows : 0);
            EXPECT_EQ(candidate.bytes, row_bytes(candidate.type, width * part.rows) + ids);
            double all = 0;
            for (int64_t r = part.first; r < part.first + part.rows; ++r) {
                const auto row = static_cast<size_t>(order[static_cast<size_t>(r)]);
                const auto values = std::span(weights).subspan(row * width, width);
                const auto rounded = nearest_rounded(values, {gram, width, width}, candidate.type).values;
                for (size_t i = 0; i < width; ++i)
                    for (size_t j = 0; j < width; ++j)
                        all += use[row] * static_cast<double>(vocab) * gram[i * width + j] *
                               static_cast<double>(rounded[i] - values[i]) *
                               static_cast<double>(rounded[j] - values[j]);
            }
            EXPECT_NEAR(candidate.error / all, 1, 1e-3) << part.first;
        }
    }
    EXPECT_EQ(parts, 4);
    EXPECT_EQ(next, vocab);
}

// The frequent rows of a table get the larger types, and the recipe says which ones these are.
TEST(FitTable, RowsThatTextUsesMostGetLargerTypes) {
    const SmallShape shape{
        .layers = 1, .heads = 2, .kv_heads = 1, .head_dim = 32, .embd = 64, .ff = 64, .vocab = 4096};
    const TempFolder folder;
    save_model(small_model(shape, with_flat_logits), folder / "model.gguf", false);
    const Model model = load_model(folder / "model.gguf");
    Calibration text = random_text(model, 16, 32);
    text.occurrences.resize(4096);
    for (size_t row = 0; row < 4096; ++row) text.occurrences[row] = static_cast<int64_t>(4000 / (4096 - row));
    Work work(folder / "work");
    Fit fit(model, text, work, {.probe_tokens = 128, .threads = 1, .texts = {"text.txt"}, .version = "test"});
    const uint64_t budget = std::filesystem::file_size(folder / "model.gguf") / 5;
    const Fitted made = fit.fit({.file_bytes = budget});
    const auto* table = std::get_if<RowParts>(&made.compression.model.topology.globals.at(Slot::token_embd));
    ASSERT_NE(table, nullptr) << made.plan.types;
    ASSERT_GE(table->parts.size(), 2U);
    double bits = 1e9;
    for (const std::string& part : table->parts) {
        const Tensor& tensor = made.compression.model.tensor(part);
        const double now = static_cast<double>(tensor.bytes()) / static_cast<double>(tensor.elements());
        EXPECT_LT(now, bits) << made.plan.types;
        bits = now;
    }
    EXPECT_EQ(ids_in_order(made.compression.model, *table).front(), 4095);
    save_model(made.compression.model, folder / "fit.gguf", false);
    EXPECT_LE(std::filesystem::file_size(folder / "fit.gguf"), budget);
    Work again;
    const Compression same =
        compress(model, fit.recipe(made.plan), "test", again, {.calibration = &text, .threads = 1});
    save_model(same.model, folder / "again.gguf", false);
    EXPECT_EQ(bytes_of_file(folder / "fit.gguf"), bytes_of_file(folder / "again.gguf"));
}

// Files for llama.cpp give it the logits that they give here.
TEST_F(FitTest, ForLlamaCpp) {
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/hf/llama_gqa");
    const Calibration text = random_text(model, 16, 32);
    options_.layout = RowLayout::whole_blocks;
    Work work(this->work());
    Fit fit(model, text, work, options_);
    const std::string path = folder_ / "stock.gguf";
    save_model(fit.fit({.file_bytes = account(model).model.bytes / 5}).compression.model, path, false);
    const Model again = load_model(path);
    for (const auto& [name, tensor] : again.tensors) EXPECT_EQ(tensor.fold(), 1) << name;
    const auto tokens = random_tokens(40, model.config.n_vocab, 5);
    StockLlama stock(path, {.threads = 1, .context = 64, .kv = KvType::f32, .flash_attention = false});
    // Both multiply quantized weights with quantized activations, in other orders.
    EXPECT_LT(scaled_difference(stock.evaluate_all(tokens), all_logits(again, tokens, {.threads = 1})), 0.05);
}

}  // namespace
}  // namespace refold
