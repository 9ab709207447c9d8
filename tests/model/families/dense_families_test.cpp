// What the descriptions of newer dense families say beyond their golden fixtures: defaults, options,
// refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/safetensors.h"
#include "model/families/edited_config.h"
#include "model/hf/export.h"
#include "model/materialize.h"
#include "model/save.h"
#include "model/stock.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Flags = std::vector<bool>;
using Windows = std::vector<int64_t>;

Model saved(const Model& model) {
    const TempFolder folder;
    save_model(model, folder / "model.gguf", false);
    return load_model(folder / "model.gguf");
}

// Two lists of factors, one longer than the other, and the magnitude that follows from the two contexts.
TEST(Phi3, LongRope) {
    const auto longrope = [](json& c) {
        c["original_max_position_embeddings"] = 64;
        c["rope_scaling"] = {{"type", "longrope"},
                             {"short_factor", {1.0, 1.1, 1.2, 1.3, 1.4, 1.5}},
                             {"long_factor", {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}}};
    };
    const Model model = with_config("phi3", longrope);
    EXPECT_TRUE(model.config.rope.long_factors);
    EXPECT_EQ(model.config.rope.original_context, 64);
    EXPECT_NEAR(model.config.rope.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(64.0)), 1e-6);
    const auto& globals = model.topology.globals;
    EXPECT_EQ(materialize(model, globals.at(Slot::rope_freqs), Slot::rope_freqs)[5], 1.5F);
    EXPECT_EQ(materialize(model, globals.at(Slot::rope_freqs_long), Slot::rope_freqs_long)[5], 6.0F);
    EXPECT_THAT(config_error(
                    "phi3",
                    [&](json& c) {
                        longrope(c);
                        c["rope_scaling"]["long_factor"].push_back(7.0);
                    },
                    ErrorCode::input),
                HasSubstr("'rope_scaling.long_factor' must be a list of 6 numbers"));
    EXPECT_FALSE(with_config("phi3", [](json&) {}).config.rope.long_factors);
}

TEST(Phi3, OptionsOfItsConfiguration) {
    const Model model = with_config("phi3", [](json& c) {
        c["partial_rotary_factor"] = 0.5;
        c["sliding_window"] = nullptr;
    });
    EXPECT_EQ(model.config.rope.dims, 6);
    EXPECT_TRUE(model.config.windows.empty());
}

TEST(Phi3, FilesHaveJoinedMaps) {
    const TempFolder folder;
    const Model model = load_model(fixture_path("phi3"));
    save_model(model, folder / "model.gguf", false);
    const auto file = GgufFile::open(folder / "model.gguf");
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const auto& tensor : file->tensors()) shapes[tensor.name] = tensor.shape;
    EXPECT_EQ(shapes.at("blk.1.ffn_up.weight"), (std::vector<int64_t>{48, 88}));
    EXPECT_EQ(shapes.at("blk.1.attn_qkv.weight"), (std::vector<int64_t>{48, 96}));
    EXPECT_FALSE(shapes.contains("blk.1.ffn_gate.weight"));
    EXPECT_EQ(load_model(folder / "model.gguf").topology, model.topology);
}

TEST(SmolLm3, LayersThatDoNotRotate) {
    EXPECT_EQ(load_model(fixture_path("smollm3")).config.rotated, (Flags{true, true, true, false}));
    const Model every_other = with_config("smollm3", [](json& c) {
        c.erase("no_rope_layers");
        c["no_rope_layer_interval"] = 2;
    });
    EXPECT_EQ(every_other.config.rotated, (Flags{true, false, true, false}));
    EXPECT_THAT(stock_error(every_other), HasSubstr("which layers rotate"));
    Model own = load_model(fixture_path("smollm3"));
    const Model first = with_config("smollm3", [](json& c) { c["no_rope_layers"] = {0, 1, 1, 1}; });
    own.metadata = first.metadata;
    own.config = first.config;
    EXPECT_EQ(saved(own).config.rotated, (Flags{false, true, true, true}));
    EXPECT_THAT(config_error(
                    "smollm3",
                    [](json& c) {
                        c["no_rope_layers"] = {0, 1};
                    },
                    ErrorCode::input),
                HasSubstr("'no_rope_layers'"));
}

TEST(SmolLm3, WindowsWhereTheyAreUsed) {
    const auto windowed = [](json& c) {
        c["use_sliding_window"] = true;
        c["sliding_window"] = 8;
        c.erase("layer_types");
    };
    EXPECT_EQ(with_config("smollm3", windowed).config.windows, (Windows{0, 0, 0, 8}));
    EXPECT_TRUE(with_config("smollm3", [](json& c) { c["sliding_window"] = 8; }).config.windows.empty());
}

TEST(Granite, MultipliersThatAreNotThere) {
    const Model model = with_config("granite", [](json& c) {
        for (const char* field :
             {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"})
            c.erase(field);
    });
    EXPECT_EQ(model.config.attention_scale, 1.0F);
    EXPECT_EQ(model.config.embedding_scale, 1.0F);
    EXPECT_EQ(model.config.residual_scale, 1.0F);
    EXPECT_EQ(model.config.logit_scale, 1.0F);
}

TEST(StableLm, AttentionAndFfnInParallelHaveOneNorm) {
    const Model model = with_config("stablelm", [](json& c) { c["use_parallel_residual"] = true; });
    EXPECT_TRUE(model.config.parallel_residual);
    EXPECT_FALSE(model.topology.has(0, Slot::ffn_norm));
    Model broken = load_model(fixture_path("stablelm"));
    broken.topology.layers[1].erase(Slot::ffn_norm);
    broken.topology.layers[1].erase(Slot::ffn_norm_bias);
    const TempFolder folder;
    EXPECT_THROW(save_model(broken, folder / "x.gguf", false), Error);
    EXPECT_FALSE(with_config("stablelm", [](json& c) {
                     c["use_qkv_bias"] = false;
                 }).topology.has(0, Slot::attn_q_bias));
}

// A checkpoint has one tensor for each head, GGUF one for all.
TEST(StableLm, GainsOfHeads) {
    Model model = load_model(fixture_path("stablelm"));
    model.metadata.erase("refold.checkpoint");
    std::vector<float> gains;
    for (int i = 0; i < 48; ++i) gains.push_back(static_cast<float>(i));
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        for (const Slot slot : {Slot::attn_q_norm_all, Slot::attn_k_norm_all}) {
            const std::string name = tensor_name(*model.family, slot, l);
            model.tensors[name] = {
                DType::F32, {48}, {}, [bytes = quantize(DType::F32, gains, 48)] { return bytes; }};
            model.topology.layers[l][slot] = Dense{name};
        }
    }
    EXPECT_EQ(for_stock(model).model.tensor("blk.1.attn_q_norm.weight").shape, (std::vector<int64_t>{16, 3}));
    EXPECT_EQ(saved(for_stock(model).model).tensor("blk.1.attn_q_norm.weight").shape,
              std::vector<int64_t>{48});
    const TempFolder folder;
    save_hf_model(model, folder / "out", {});
    const SafetensorsFile file = read_safetensors(folder / "out/model.safetensors");
    EXPECT_EQ(file.tensors.at("model.layers.1.self_attn.k_layernorm.norms.2.weight").shape,
              std::vector<int64_t>{16});
    const Model again = load_model(folder / "out");
    EXPECT_EQ(materialize(again, again.topology.at(1, Slot::attn_k_norm_all), Slot::attn_k_norm_all), gains);
    EXPECT_EQ(again.topology, model.topology);
}

TEST(Cohere, GainsOfHeads) {
    const Model model = with_config("cohere", [](json& c) { c["use_qk_norm"] = true; });
    EXPECT_TRUE(model.config.norm_by_head);
    EXPECT_EQ(model.tensor("blk.0.attn_q_norm.weight").shape, std::vector<int64_t>{48});
    EXPECT_THAT(stock_error(model), HasSubstr("norms of queries and keys"));
    // 64 layers, as llama.cpp wants: gains are rows of heads there.
    const Model large = with_config("cohere", [](json& c) {
        c["use_qk_norm"] = true;
        c["num_hidden_layers"] = 64;
    });
    EXPECT_EQ(for_stock(large).model.tensor("blk.0.attn_q_norm.weight").shape, (std::vector<int64_t>{12, 4}));
}

TEST(Cohere2, LayersThatSeeAllDoNotRotate) {
    const Model model = with_config("cohere2", [](json& c) {
        c.erase("layer_types");
        c["sliding_window_pattern"] = 2;
    });
    EXPECT_EQ(model.config.windows, (Windows{8, 0, 8, 0}));
    EXPECT_EQ(model.config.rotated, (Flags{true, false, true, false}));
}

TEST(Hunyuan, AlphaRaisesTheBaseOnceAndForAll) {
    const Model model = load_model(fixture_path("hunyuan_dense"));
    EXPECT_NEAR(model.config.rope.base, 10000.0 * std::pow(1000.0, 16.0 / 14.0), 10000.0);
    EXPECT_EQ(model.config.rope.dynamic_factor, 0.0F);
    EXPECT_THAT(config_error("hunyuan_dense", [](json& c) { c["rope_scaling"]["factor"] = 2.0; }),
                HasSubstr("'rope_scaling.factor' (2)"));
    EXPECT_THAT(config_error("hunyuan_dense", [](json& c) { c["rope_scaling"]["gamma"] = 2.0; }),
                HasSubstr("'rope_scaling.gamma'"));
    // Without alpha it is the dynamic scaling of all families.
    EXPECT_EQ(with_config("hunyuan_dense",
                          [](json& c) {
                              c["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
                          })
                  .config.rope.dynamic_factor,
              2.0F);
}

TEST(Mistral, HeadsHaveASizeOfTheirOwn) {
    const Model model = with_config("mistral", [](json& c) { c["head_dim"] = 32; });
    EXPECT_EQ(model.config.head_dim, 32);
    EXPECT_EQ(model.config.rope.dims, 32);
}

}  // namespace
}  // namespace refold
