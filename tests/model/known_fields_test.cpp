// Fields of config.json that nobody reads.
#include "model/hf/known_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/families/edited_config.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> fixtures() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(fixture_path("")))
        names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

class KnownFields : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, KnownFields, testing::ValuesIn(fixtures()),
                         [](const auto& test) { return test.param; });

TEST_P(KnownFields, AnUnknownOneIsRefusedByName) {
    EXPECT_THAT(config_error(GetParam(), [](json& c) { c["mixture_of_depths"] = 0.5; }),
                AllOf(HasSubstr("field 'mixture_of_depths' (0.5) is not known for family"),
                      HasSubstr("config.json")));
    EXPECT_EQ(config_error(GetParam(), [](json& c) { c["mixture_of_depths"] = nullptr; }), "no error");
}

TEST_P(KnownFields, WhatChangesNothingIsAccepted) {
    EXPECT_EQ(config_error(GetParam(),
                           [](json& c) {
                               c["use_cache"] = false;
                               c["attention_dropout"] = 0.1;
                               c["_name_or_path"] = "somewhere";
                               c["id2label"] = {{"0", "A"}};
                               c["tie_encoder_decoder"] = false;
                               c["pruned_heads"] = json::object();
                               c["is_encoder_decoder"] = false;
                           }),
              "no error");
    EXPECT_THAT(config_error(GetParam(),
                             [](json& c) {
                                 c["pruned_heads"] = {{"0", {1}}};
                             }),
                HasSubstr("'pruned_heads'"));
    EXPECT_THAT(config_error(GetParam(), [](json& c) { c["is_encoder_decoder"] = true; }),
                HasSubstr("'is_encoder_decoder' (true)"));
}

TEST(KnownFieldsOfLlama, AreThoseThatItReads) {
    const auto error = [](const char* field, const json& value) {
        return config_error("llama_gqa", [&](json& c) { c[field] = value; });
    };
    for (const auto& [field, value] :
         std::vector<std::pair<const char*, json>>{{"attention_multiplier", 0.5},
                                                   {"residual_multiplier", 0.5},
                                                   {"logits_scaling", 8.0},
                                                   {"sliding_window", 64},
                                                   {"partial_rotary_factor", 0.5},
                                                   {"use_qk_norm", true},
                                                   {"no_rope_layers", {1, 0}},
                                                   {"quantization_config", {{"bits", 4}}},
                                                   {"num_local_experts", 8}})
        EXPECT_THAT(error(field, value), HasSubstr(std::string("field '") + field + "'"));
    for (const auto& [field, value] : std::vector<std::pair<const char*, json>>{
             {"pretraining_tp", 2}, {"partial_rotary_factor", 1}, {"layer_sharing", false}, {"head_dim", 32}})
        EXPECT_EQ(error(field, value), "no error") << field;
    EXPECT_EQ(error("layer_types", json(4, "full_attention")), "no error");
    EXPECT_THAT(error("layer_types", json(4, "sliding_attention")), HasSubstr("'layer_types'"));
}

TEST(KnownFieldsOfRotation, AreThoseOfItsType) {
    const auto error = [](const json& scaling) {
        return config_error("qwen3", [&](json& c) { c["rope_scaling"] = scaling; });
    };
    EXPECT_EQ(error({{"rope_type", "linear"}, {"factor", 2.0}}), "no error");
    EXPECT_THAT(error({{"rope_type", "linear"}, {"factor", 2.0}, {"alpha", 100}}),
                HasSubstr("'rope_scaling.alpha' (100)"));
    EXPECT_THAT(error({{"type", "default"}, {"mrope_section", {4, 2, 2}}}),
                HasSubstr("'rope_scaling.mrope_section'"));
    const json yarn = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
    EXPECT_EQ(error(yarn), "no error");
    json exact = yarn;
    exact["truncate"] = true;
    EXPECT_EQ(error(exact), "no error");
    exact["truncate"] = false;
    EXPECT_EQ(error(exact), "no error");
    const auto of = [&](const char* fixture) {
        return config_error(fixture, [&](json& c) { c["rope_scaling"] = exact; });
    };
    EXPECT_THAT(of("gemma3"), HasSubstr("rope_scaling"));  // no place for factors
}

// As transformers' _compute_yarn_parameters: the factor of cosines, as ggml's own of 1 + 0.1 ln(factor) and
// the rest.
TEST(KnownFieldsOfRotation, MagnitudesOfYarn) {
    const auto factor = [](const json& more) {
        json scaling = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
        scaling.update(more);
        return with_config("qwen3", [&](json& c) { c["rope_scaling"] = scaling; })
            .config.rope.attention_factor;
    };
    const double own = 1 + 0.1 * std::log(4.0);
    EXPECT_EQ(factor(json::object()), 1.0F);
    EXPECT_NEAR(factor({{"attention_factor", 1.5}}), 1.5 / own, 1e-6);
    EXPECT_NEAR(factor({{"mscale", 0.5}, {"mscale_all_dim", 0.25}}),
                (1 + 0.05 * std::log(4.0)) / (1 + 0.025 * std::log(4.0)) / own, 1e-6);
}

// transformers 5 has one object for all that describes the rotation.
TEST(KnownFieldsOfRotation, NewerFormOfTheFields) {
    const Model model = with_config("llama_yarn", [](json& c) {
        json parameters = c["rope_scaling"];
        parameters["rope_theta"] = 12345.0;
        c.erase("rope_scaling");
        c.erase("rope_theta");
        c["rope_parameters"] = parameters;
    });
    EXPECT_EQ(model.config.rope.base, 12345.0F);
    EXPECT_EQ(model.config.rope.frequency_scale, 0.25F);
    EXPECT_EQ(model.config.rope.original_context, 32);
    EXPECT_THAT(config_error("llama_yarn",
                             [](json& c) {
                                 c["rope_parameters"] = c["rope_scaling"];
                                 c["rope_parameters"]["beta"] = 2;
                                 c.erase("rope_scaling");
                             }),
                HasSubstr("'rope_scaling.beta'"));
    EXPECT_THAT(
        config_error(
            "gemma3",
            [](json& c) {
                c["rope_parameters"] = {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}};
            }),
        HasSubstr("rope_parameters.sliding_attention"));
}

}  // namespace
}  // namespace refold
