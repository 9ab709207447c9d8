// What Qwen3's descriptions say beyond the golden fixture: defaults, windows, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/temp_folder.h"
#include "core/text.h"
#include "model/load.h"

namespace refold {
namespace {

const std::string kQwen3 = std::string(REFOLD_FIXTURES) + "/hf/qwen3";

// The fixture's config.json alone, edited.
Model with_config(const std::function<void(nlohmann::json&)>& edit) {
    const TempFolder folder;
    nlohmann::json config = nlohmann::json::parse(read_text_file(kQwen3 + "/config.json"));
    edit(config);
    std::ofstream(folder / "config.json") << config.dump();
    return load_model(folder / "config.json");
}

TEST(Qwen3, HeadsHaveASizeAndNormsOfTheirOwn) {
    const Model model = load_model(kQwen3);
    EXPECT_STREQ(model.family->name, "qwen3");
    EXPECT_EQ(model.config.head_dim, 16);
    EXPECT_NE(model.config.head_dim * model.config.n_head, model.config.n_embd);
    EXPECT_EQ(model.config.rope.kind, RopeKind::halves);
    EXPECT_EQ(model.config.rope.base, 1e6F);
    EXPECT_EQ(model.metadata.integer("qwen3.attention.key_length"), 16U);
    EXPECT_EQ(model.metadata.integer("qwen3.attention.value_length"), 16U);
    EXPECT_EQ(model.tensor("blk.2.attn_q_norm.weight").shape, std::vector<int64_t>{16});
    EXPECT_FALSE(model.topology.has(0, Slot::attn_q_bias));
    EXPECT_EQ(model.topology.globals.at(Slot::output), model.topology.globals.at(Slot::token_embd));
}

TEST(Qwen3, DefaultsOfTransformers) {
    const Model model = with_config([](nlohmann::json& c) {
        for (const char* field : {"head_dim", "rope_theta", "tie_word_embeddings", "attention_bias"})
            c.erase(field);
    });
    EXPECT_EQ(model.config.head_dim, 128);
    EXPECT_EQ(model.config.rope.base, 10000.0F);
    EXPECT_TRUE(model.tensors.contains("output.weight"));
}

TEST(Qwen3, WindowsOfTheUpperLayers) {
    const auto windowed = [](nlohmann::json& c) {
        c["use_sliding_window"] = true;
        c["sliding_window"] = 8;
        c["max_window_layers"] = 1;
        c.erase("layer_types");
    };
    EXPECT_EQ(with_config(windowed).config.windows, (std::vector<int64_t>{0, 8, 8}));
    const Model by_type = with_config([&](nlohmann::json& c) {
        windowed(c);
        c["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
    });
    EXPECT_EQ(by_type.config.windows, (std::vector<int64_t>{8, 0, 8}));
    // The number alone does not switch them on.
    EXPECT_TRUE(with_config([](nlohmann::json& c) { c["sliding_window"] = 8; }).config.windows.empty());
}

TEST(Qwen3, BiasesAreRefused) {
    try {
        with_config([](nlohmann::json& c) { c["attention_bias"] = true; });
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unsupported);
        EXPECT_THAT(error.what(), testing::HasSubstr("'attention_bias' is not supported for Qwen3"));
    }
}

}  // namespace
}  // namespace refold
