// Moves besides types: their best settings at a size, and mixtures with types.
#include "fit/search.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "compress/calibrated.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "fit/flat_logits.h"
#include "fit/sensitivity.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

constexpr size_t kUseless = 2;  // a layer whose modules give nothing, in one of the models

float with_useless_layer(size_t layer, Slot slot, int64_t row, int64_t column) {
    const bool nothing = layer == kUseless && (slot == Slot::attn_o || slot == Slot::ffn_down);
    return nothing ? 0.0F : with_flat_logits(layer, slot, row, column);
}

class SearchTest : public testing::Test {
protected:
    void SetUp() override { use(with_flat_logits); }

    void use(const WeightOf& weights) {
        constexpr SmallShape kLayers{
            .layers = 5, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 128, .ff = 256, .vocab = 64};
        save_model(small_model(kLayers, weights), folder_ / "model.gguf", true);
        model_ = load_model(folder_ / "model.gguf");
        text_ = random_text(model_, 24, 32);
        options_ = {.probe_tokens = 128, .threads = 1, .texts = {"text.txt"}, .version = "test"};
        whole_ = fs::file_size(folder_ / "model.gguf");
    }
    Budget part(double of) const {
        return {.file_bytes = static_cast<uint64_t>(of * static_cast<double>(whole_))};
    }
    std::vector<std::string> files_in(const std::string& folder) const {
        std::vector<std::string> out;
        for (const auto& entry : fs::recursive_directory_iterator(folder)) out.push_back(entry.path());
        std::ranges::sort(out);
        return out;
    }

    TempFolder folder_;
    Model model_;
    Calibration text_;
    FitOptions options_;
    uint64_t whole_ = 0;
};

TEST_F(SearchTest, TheBestSettingsOfAMethodAreWritten) {
    for (const char* method : kStructureMethods) {
        SCOPED_TRACE(method);
        const Budget budget =
            part(std::string(method) == "cla" || std::string(method) == "uniattn" ? 0.97 : 0.85);
        Work work(folder_ / method);
        Search search(model_, text_, work, options_, {false, {method}}, budget);
        const std::vector<Way>& ways = search.ways();
        ASSERT_FALSE(ways.empty());
        for (const Way& way : ways) {
            EXPECT_EQ(way.structure->settings.method, method);
            EXPECT_LE(ways.front().divergence(), way.divergence());
            // What is said of it is so.
            const Model made =
                compress(model_, recipe_of_steps(way.structure->steps()), "test", work, {&text_, 1}).model;
            EXPECT_NEAR(way.divergence(), Divergence(model_, text_.held_out, 1).of(made), 1e-6) << way.text();
            EXPECT_LE(spending_of(made, nullptr).file_bytes, *budget.file_bytes) << way.text();
        }
        const Fitted fitted = search.carry_out();
        save_model(fitted.compression.model, folder_ / "a.gguf", true);
        EXPECT_LE(fs::file_size(folder_ / "a.gguf"), *budget.file_bytes);
        EXPECT_LE(fs::file_size(folder_ / "a.gguf"), fitted.plan.bytes + 4096);
        EXPECT_NEAR(Divergence(model_, text_.held_out, 1).of(load_model(folder_ / "a.gguf")),
                    ways.front().divergence(), 1e-6);
        // The recipe gives the same file.
        Work fresh;
        const Recipe recipe = parse_recipe(to_yaml(search.recipe(fitted.plan)), "recipe");
        save_model(compress(model_, recipe, "test", fresh, {&text_, 1}).model, folder_ / "b.gguf", true);
        EXPECT_TRUE(read_all(folder_ / "a.gguf") == read_all(folder_ / "b.gguf"));
    }
}

// The mildest severity that is small enough.
TEST_F(SearchTest, NothingIsMoreSevereThanTheSizeAsks) {
    const std::vector<std::string> methods = {"narrow", "direct_share", "laser", "tensorllm"};
    const Budget budget = part(0.9);
    const auto found = structures_within(model_, budget, methods, nullptr);
    EXPECT_GT(found.size(), 8U);
    for (const Structure& structure : found) {
        const auto bytes = [&](size_t severity) {
            return planned(model_, {structure.settings, severity}, nullptr).file_bytes;
        };
        EXPECT_LE(bytes(structure.severity), *budget.file_bytes) << structure.text();
        if (structure.severity == 0) continue;
        EXPECT_GT(bytes(structure.severity - 1), *budget.file_bytes) << structure.text();
    }
}

TEST_F(SearchTest, ASecondRunMeasuresNothing) {
    const Moves moves{true, {"llmdrop", "narrow"}};
    std::vector<std::string> texts;
    {
        Work work(folder_ / "work");
        Search search(model_, text_, work, options_, moves, part(0.25));
        for (const Way& way : search.ways()) texts.push_back(way.text());
    }
    const auto before = files_in(folder_ / "work");
    Work work(folder_ / "work");
    Search search(model_, text_, work, options_, moves, part(0.25));
    std::vector<std::string> again;
    for (const Way& way : search.ways()) again.push_back(way.text());
    EXPECT_EQ(again, texts);
    EXPECT_EQ(files_in(folder_ / "work"), before);
    EXPECT_GT(work.reused(), 0U);
}

TEST_F(SearchTest, TypesAloneWinWhereStructureLosesMore) {
    Work work(folder_ / "work");
    Search search(model_, text_, work, options_, {true, {"llmdrop", "narrow"}}, part(0.3));
    const std::vector<Way>& ways = search.ways();
    EXPECT_EQ(ways.front().text(), "types alone");
    ASSERT_GT(ways.size(), 4U);
    for (const Way& way : ways) EXPECT_GE(way.divergence(), ways.front().divergence()) << way.text();
    const Fitted fitted = search.carry_out();
    save_model(fitted.compression.model, folder_ / "a.gguf", true);
    EXPECT_LE(fs::file_size(folder_ / "a.gguf"), *part(0.3).file_bytes);
    EXPECT_EQ(search.recipe(fitted.plan).steps.size(), 1U);
}

// A layer that does nothing is the first to go, and its bytes buy larger types.
TEST_F(SearchTest, StructureWinsWhereItCostsNothing) {
    use(with_useless_layer);
    Work work(folder_ / "work");
    Search search(model_, text_, work, options_, {true, {"llmdrop"}}, part(0.22));
    const Way& best = search.ways().front();
    ASSERT_TRUE(best.structure);
    EXPECT_EQ(best.structure->settings.fixed, std::vector<std::string>{"modules=block"});
    ASSERT_TRUE(best.of_types);
    EXPECT_LT(best.of_structure, 1e-4);
    const Fitted fitted = search.carry_out();
    EXPECT_EQ(search.recipe(fitted.plan).steps.size(), 3U);  // llmdrop, refit, quantize
    save_model(fitted.compression.model, folder_ / "a.gguf", true);
    EXPECT_LE(fs::file_size(folder_ / "a.gguf"), *part(0.22).file_bytes);
    Fit alone(model_, text_, work, options_);
    EXPECT_LT(fitted.divergence, alone.fit(part(0.22)).divergence);
    EXPECT_NEAR(fitted.divergence, Divergence(model_, text_.held_out, 1).of(load_model(folder_ / "a.gguf")),
                1e-6);
}

TEST_F(SearchTest, ASpeedIsABudgetOfAStructure) {
    options_.speeds = TypeSpeeds{{{{DType::F32}, 1}}, 0};
    Budget budget = part(0.95);
    budget.token_seconds = 0.8 * token_seconds(model_, *options_.speeds);
    Work work(folder_ / "work");
    Search search(model_, text_, work, options_, {false, {"narrow", "direct_share"}}, budget);
    for (const Way& way : search.ways()) {
        EXPECT_EQ(way.structure->settings.method, "narrow");  // sharing saves no time
        const Model made =
            compress(model_, recipe_of_steps(way.structure->steps()), "test", work, {&text_, 1}).model;
        EXPECT_LE(token_seconds(made, *options_.speeds), 1.000001 * *budget.token_seconds);
    }
}

TEST_F(SearchTest, SaysWhatCannotBeReached) {
    const auto asked = [&](const Moves& moves, const Budget& budget) {
        return [&, moves, budget] { check_reachable(model_, RowLayout::or_folded, moves, budget); };
    };
    EXPECT_EQ(code_of(asked({false, {"direct_share"}}, part(0.3)), "none of direct_share reaches a file of"),
              ErrorCode::usage);
    EXPECT_EQ(code_of(asked({false, {"direct_share"}}, part(0.3)), "the smallest file they reach has"),
              ErrorCode::usage);
    EXPECT_EQ(code_of(asked({true, {"narrow"}}, part(0.01)), "the smallest file has"), ErrorCode::usage);
    Budget cache = part(0.3);
    cache.kv_bytes_per_token = 640;  // half
    EXPECT_EQ(code_of(asked({true, {}}, cache), "types do not change the KV cache"), ErrorCode::usage);
    EXPECT_NO_THROW(asked({true, {"narrow"}}, cache)());
    // What is named as the smallest is reached.
    try {
        asked({false, {"ffn_share"}}, part(0.3))();
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("(ffn_share ratio="), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace refold
