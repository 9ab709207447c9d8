// The page about several sizes of a model.
#include "report/frontier.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/load.h"
#include "model/quantized.h"
#include "report/markup_check.h"

namespace refold {
namespace {

Model fixture() { return load_model(std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf"); }

size_t count(const std::string& text, const std::string& part) {
    size_t out = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++out;
    return out;
}

Frontier example() {
    Frontier f;
    f.model = "model <b>";
    f.version = "1";
    f.file_bytes = 200 << 20;
    f.perplexity = 20;
    f.text = "text.txt & windows";
    FrontierFile small;
    small.name = "60MiB";
    small.file_bytes = 60 << 20;
    small.figures = {.kl_divergence = 0.25, .kl_low = 0.2, .kl_high = 0.3, .perplexity = 30};
    small.predicted_divergence = 0.21;
    small.types =
        type_map(quantize_model(fixture(), {.type = DType::Q4_0, .embedding_type = DType::Q8_0}).model);
    small.recipe = "steps: <quantize>";
    FrontierFile large = small, other = small;
    large.name = "90MiB";
    large.file_bytes = 90 << 20;
    large.figures = {.kl_divergence = 0.01, .perplexity = 20.5};
    other.name = "theirs-Q4_K_M";
    other.made = false;
    other.recipe.clear();
    f.files = {small, large, other};
    f.commands = {"refold fit model --frontier 60,90MiB"};
    return f;
}

TEST(Frontier, TypesOfAModel) {
    const TypeMap map =
        type_map(quantize_model(fixture(), {.type = DType::Q4_0, .embedding_type = DType::Q8_0}).model);
    ASSERT_EQ(map.layers.size(), fixture().topology.layers.size());
    ASSERT_EQ(map.slots.size(), 7U);
    for (const auto& row : map.layers) {
        for (const TypeMap::Cell& cell : row) {
            EXPECT_EQ(cell.type, "Q4_0");
            EXPECT_DOUBLE_EQ(cell.bits, 4.5);
        }
    }
    ASSERT_FALSE(map.tables.empty());
    EXPECT_EQ(map.tables[0].second.type, "Q8_0");
    EXPECT_DOUBLE_EQ(map.tables[0].second.bits, 8.5);
}

TEST(Frontier, PageShowsEveryFile) {
    const std::string html = frontier_html(example());
    EXPECT_EQ(markup_error(html), "");
    for (const char* part :
         {"<h1>Sizes of model &lt;b&gt;</h1>", "text.txt &amp; windows", "KL divergence against size",
          "Perplexity against size", "theirs-Q4_K_M", "0.2 to 0.3", "Recipe of 60MiB", "&lt;quantize&gt;",
          "refold fit model --frontier 60,90MiB", "token_embd Q8_0 (8.50)"})
        EXPECT_NE(html.find(part), std::string::npos) << part;
    // Maps of what was made, not of what it is compared with: 2 files x 4 layers x 7 matrices.
    EXPECT_EQ(count(html, ", Q4_0</title>"), 2U * 4U * 7U);
    // The made ones, the other one and, of perplexity, the original.
    EXPECT_EQ(count(html, "<circle"), 3U + 4U + 2U * 2U);
}

TEST(Frontier, JsonHasTheSameNumbers) {
    const auto json = frontier_json(example());
    EXPECT_EQ(json["file_bytes"], 200 << 20);
    ASSERT_EQ(json["files"].size(), 3U);
    const auto& small = json["files"][0];
    EXPECT_EQ(small["name"], "60MiB");
    EXPECT_EQ(small["kl_divergence"], 0.25);
    EXPECT_EQ(small["kl_divergence_interval"], (nlohmann::json{0.2, 0.3}));
    EXPECT_EQ(small["predicted_divergence"], 0.21);
    EXPECT_EQ(small["types"]["layers"][3]["ffn.down"], "Q4_0");
    EXPECT_TRUE(json["files"][1]["kl_divergence_interval"].is_null());
    EXPECT_EQ(json["files"][2]["made"], false);
}

// One file alone makes no front, and text that is nearly the original's has no divergence to speak of.
TEST(Frontier, AnyNumbersMakeAPage) {
    Frontier f = example();
    f.files.resize(1);
    f.files[0].figures = {};
    f.files[0].types = {};
    EXPECT_EQ(markup_error(frontier_html(f)), "");
    f.files.clear();
    EXPECT_EQ(markup_error(frontier_html(f)), "");
}

}  // namespace
}  // namespace refold
