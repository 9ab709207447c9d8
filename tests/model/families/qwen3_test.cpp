// What Qwen3's descriptions say beyond the golden fixture: defaults, windows, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/families/edited_config.h"

namespace refold {
namespace {

Model edited(const EditConfig& edit) { return with_config("qwen3", edit); }

TEST(Qwen3, HeadsHaveASizeAndNormsOfTheirOwn) {
    const Model model = load_model(fixture_path("qwen3"));
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
    const Model model = edited([](nlohmann::json& c) {
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
    EXPECT_EQ(edited(windowed).config.windows, (std::vector<int64_t>{0, 8, 8}));
    const Model by_type = edited([&](nlohmann::json& c) {
        windowed(c);
        c["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
    });
    EXPECT_EQ(by_type.config.windows, (std::vector<int64_t>{8, 0, 8}));
    // The number alone does not switch them on.
    EXPECT_TRUE(edited([](nlohmann::json& c) { c["sliding_window"] = 8; }).config.windows.empty());
}

TEST(Qwen3, BiasesAreRefused) {
    EXPECT_THAT(config_error("qwen3", [](nlohmann::json& c) { c["attention_bias"] = true; }),
                testing::HasSubstr("'attention_bias' is not supported for Qwen3"));
}

}  // namespace
}  // namespace refold
