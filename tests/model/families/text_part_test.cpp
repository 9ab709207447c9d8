// The text part of checkpoints that also see or hear: its configuration is a part of theirs, and their other
// tensors stay unread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error_of.h"
#include "model/families/renamed_checkpoint.h"
#include "model/hf/export.h"
#include "model/materialize.h"

namespace refold {
namespace {

using nlohmann::json;

json whole_config(const char* model_type, const json& text) {
    return {{"model_type", model_type},
            {"architectures", {"ForConditionalGeneration"}},
            {"text_config", text},
            {"vision_config", {{"hidden_size", 8}, {"model_type", "siglip_vision_model"}}},
            {"image_token_index", 3},
            {"eos_token_id", {1, 2}}};
}

void expect_same_model(const Model& model, const Model& expected) {
    EXPECT_EQ(model.topology, expected.topology);
    ASSERT_EQ(model.tensors.size(), expected.tensors.size());
    for (const auto& [name, tensor] : model.tensors)
        EXPECT_EQ(floats_of(model, name), floats_of(expected, name)) << name;
}

void expect_text_of(const char* fixture, const char* model_type, const std::string& before) {
    const TempFolder folder;
    const std::string source = std::filesystem::path(folder / "x").parent_path();
    const std::vector<std::byte> pixels(12);
    write_renamed(
        fixture, source, whole_config(model_type, fixture_config(fixture)),
        [&](const std::string& name) { return before + name; }, [](const auto&, auto&) {},
        {{"vision_tower.encoder.weight", "F32", {3}, [&](const auto& sink) { sink(pixels); }}});
    const Model expected = load_model(fixture_path(fixture)), model = load_model(source);
    expect_same_model(model, expected);
    EXPECT_EQ(model.config.windows, expected.config.windows);
    // What is written is a text model.
    const TempFolder out;
    save_hf_model(model, out / "hf", {});
    const json written = json::parse(read_text_file(out / "hf/config.json"));
    EXPECT_EQ(written.at("model_type"), fixture_config(fixture).at("model_type"));
    EXPECT_FALSE(written.contains("vision_config"));
    expect_same_model(load_model(out / "hf"), expected);
}

TEST(TextPart, Gemma3) { expect_text_of("gemma3", "gemma3", "language_model."); }
TEST(TextPart, Gemma3n) { expect_text_of("gemma3n", "gemma3n", ""); }

// As the published configuration of Gemma 3 4B, which says little.
TEST(TextPart, LeavesOutWhatTransformersSupplies) {
    const TempFolder folder;
    std::ofstream(folder / "config.json")
        << whole_config("gemma3", {{"model_type", "gemma3_text"},
                                   {"hidden_size", 2560},
                                   {"intermediate_size", 10240},
                                   {"num_hidden_layers", 34},
                                   {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                                   {"sliding_window", 1024}})
               .dump();
    const ModelConfig config = load_model(folder / "config.json").config;
    EXPECT_EQ(config.n_head, 8);
    EXPECT_EQ(config.n_head_kv, 4);
    EXPECT_EQ(config.head_dim, 256);
    EXPECT_EQ(config.n_vocab, 262208);
    EXPECT_EQ(config.rope.frequency_scale, 0.125F);
    EXPECT_EQ(config.local_rope->frequency_scale, 1.0F);
    EXPECT_EQ(config.window(4), 1024);
    EXPECT_EQ(config.window(5), 0);
}

TEST(TextPart, OfAnUnknownModelIsRefused) {
    const TempFolder folder;
    std::ofstream(folder / "config.json")
        << whole_config("seer", {{"model_type", "seer_text"}, {"hidden_size", 8}}).dump();
    EXPECT_THAT(error_of([&] { load_model(folder / "config.json"); }, ErrorCode::unsupported),
                testing::HasSubstr("model_type 'seer' is not supported"));
}

}  // namespace
}  // namespace refold
