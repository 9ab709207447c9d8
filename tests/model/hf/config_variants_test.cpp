// Configurations that say the same in other ways, leave fields out, or contradict themselves: each is read as
// transformers 5 reads it, or refused with the field's name where versions of transformers disagree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error_of.h"
#include "model/families/edited_config.h"
#include "model/hf/config_classes.h"
#include "model/hf/readable_config.h"
#include "model/materialize.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using Windows = std::vector<int64_t>;

// The message of an error of any code.
std::string any_error(const std::string& fixture, const EditConfig& edit) {
    try {
        with_config(fixture, edit);
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

ModelConfig config_of(const char* fixture, const EditConfig& edit) {
    return with_config(fixture, edit).config;
}

// ---- windows ----

TEST(ConfigWindows, MixtralAndPhi3HaveThemOnEveryLayer) {
    const auto edit = [](json& c) {
        c["sliding_window"] = 7;
        c["layer_types"] = json(c["num_hidden_layers"].get<size_t>(), "full_attention");
        c["layer_types"][0] = "sliding_attention";
    };
    EXPECT_EQ(config_of("mixtral", edit).windows, (Windows{7, 7, 7}));
    EXPECT_EQ(config_of("phi3", edit).windows, Windows(fixture_config("phi3")["num_hidden_layers"], 7));
    // A Mistral with layer_types is a Ministral to transformers, which reads them.
    const Windows mistral = config_of("mistral", edit).windows;
    EXPECT_EQ(mistral[0], 7);
    EXPECT_EQ(mistral[1], 0);
}

TEST(ConfigWindows, Qwen3MoeHasThemOnEveryLayer) {
    const auto edit = [](json& c) {
        c["use_sliding_window"] = true;
        c["sliding_window"] = 7;
        c["max_window_layers"] = 1;
    };
    EXPECT_EQ(config_of("qwen3_moe", edit).windows, (Windows{7, 7, 7}));
}

TEST(ConfigWindows, OfMistralAreThere) {
    const auto windows = [](const EditConfig& edit) { return config_of("mistral", edit).windows; };
    EXPECT_EQ(windows([](json& c) { c.erase("sliding_window"); }).front(), 4096);
    EXPECT_TRUE(windows([](json& c) { c["sliding_window"] = nullptr; }).empty());
    EXPECT_TRUE(config_of("mixtral", [](json& c) { c.erase("sliding_window"); }).windows.empty());
}

TEST(ConfigWindows, OfQwenAreThoseOfLayerTypes) {
    const auto error = [](const EditConfig& edit) { return config_error("qwen3", edit); };
    const auto some = [](json& c) {
        c["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
    };
    EXPECT_THAT(error(some), AllOf(HasSubstr("'layer_types'"), HasSubstr("'use_sliding_window'")));
    const auto used = [&](json& c) {
        some(c);
        c["use_sliding_window"] = true;
        c["sliding_window"] = nullptr;
    };
    EXPECT_THAT(error(used), HasSubstr("'layer_types'"));
    EXPECT_TRUE(config_of("qwen3", [&](json& c) {
                    used(c);
                    c.erase("layer_types");
                }).windows.empty());
    EXPECT_THAT(config_error("smollm3",
                             [](json& c) {
                                 c["layer_types"] = json(4, "sliding_attention");
                                 c["sliding_window"] = 8;
                             }),
                HasSubstr("'use_sliding_window'"));
}

TEST(ConfigWindows, UnknownTypesOfLayersAreRefused) {
    for (const char* fixture : {"gemma2", "gemma3", "qwen3", "cohere2", "gpt_oss", "smollm3", "mistral"}) {
        EXPECT_THAT(config_error(fixture,
                                 [](json& c) {
                                     const json layers = c["num_hidden_layers"];
                                     c["layer_types"] = json(layers.get<size_t>(), "full_attention");
                                     c["layer_types"][1] = "chunked_attention";
                                 }),
                    AllOf(HasSubstr("'layer_types'"), HasSubstr("chunked_attention")))
            << fixture;
    }
}

// ---- rotation ----

TEST(ConfigRotation, TwoDescriptionsMustAgree) {
    // As model cards say: rope_scaling beside what transformers 5 wrote.
    const auto both = [](double theta) {
        return [=](json& c) {
            c.erase("rope_theta");
            c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", theta}};
            c["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 3.0}};
        };
    };
    const ModelConfig agreed = config_of("llama_gqa", both(10000.0));
    EXPECT_FLOAT_EQ(agreed.rope.frequency_scale, 1.0F / 3);
    EXPECT_EQ(agreed.rope.base, 10000.0F);
    EXPECT_THAT(config_error("qwen3", both(1e6)),
                AllOf(HasSubstr("'rope_parameters'"), HasSubstr("'rope_scaling'"), HasSubstr("versions")));
    // An empty object says nothing.
    EXPECT_EQ(config_of("qwen3",
                        [&](json& c) {
                            both(5e5)(c);
                            c["rope_scaling"] = json::object();
                        })
                  .rope.base,
              5e5F);
    EXPECT_THAT(config_error("llama_gqa",
                             [](json& c) {
                                 c["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}};
                                 c["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 3.0}};
                             }),
                HasSubstr("'rope_parameters'"));
    EXPECT_THAT(
        config_error(
            "gemma3",
            [](json& c) {
                c["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}};
                c["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
            }),
        HasSubstr("'rope_scaling'"));
}

TEST(ConfigRotation, TwoValuesMustAgree) {
    const auto error = [](double outer, double inner) {
        return config_error("llama_gqa", [=](json& c) {
            c["rope_scaling"] = nullptr;
            c["rope_theta"] = outer;
            c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", inner}};
        });
    };
    EXPECT_THAT(error(10000, 500000), AllOf(HasSubstr("'rope_theta' (10000.0)"), HasSubstr("(500000.0)")));
    EXPECT_EQ(error(10000, 10000), "no error");
    const auto types = [](const char* old) {
        return config_error("llama_gqa", [=](json& c) {
            c["rope_scaling"] = {{"rope_type", "linear"}, {"type", old}, {"factor", 2.0}};
        });
    };
    EXPECT_THAT(types("dynamic"), AllOf(HasSubstr("'rope_type' (\"linear\")"), HasSubstr("\"dynamic\"")));
    EXPECT_EQ(types("linear"), "no error");
}

TEST(ConfigRotation, ByKindOfLayerWhereTransformersHasIt) {
    const json by_kind = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 5e5}}},
                          {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}};
    const auto edit = [&](json& c) {
        for (const char* field : {"rope_theta", "rope_local_base_freq", "rope_scaling"}) c.erase(field);
        c["rope_parameters"] = by_kind;
    };
    for (const char* fixture : {"gemma3", "gemma3n"}) {
        EXPECT_EQ(config_of(fixture, edit).rope.base, 5e5F);
        EXPECT_EQ(config_of(fixture, edit).local_rope->base, 2e4F);
        EXPECT_THAT(config_error(fixture,
                                 [&](json& c) {
                                     edit(c);
                                     c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
                                 }),
                    HasSubstr("'rope_parameters.rope_t"));
    }
    EXPECT_THAT(config_error("qwen3", edit), HasSubstr("'rope_parameters.full_attention' is not supported"));
    // transformers 5 reads rope_type alone here.
    EXPECT_THAT(config_error("gemma3",
                             [](json& c) {
                                 c["rope_scaling"] = {{"type", "linear"}, {"factor", 8.0}};
                             }),
                HasSubstr("'type' and no 'rope_type'"));
}

TEST(ConfigRotation, GptNeoxHasNamesOfItsOwn) {
    const auto edit = [](json more) {
        return [=](json& c) {
            for (const char* field : {"rope_theta", "partial_rotary_factor", "rotary_emb_base", "rotary_pct"})
                c.erase(field);
            c.update(more);
        };
    };
    const auto rope = [&](const json& more) { return config_of("gpt_neox", edit(more)).rope; };
    EXPECT_EQ(rope({{"rotary_emb_base", 5e4}, {"rotary_pct", 0.5}}).base, 5e4F);
    EXPECT_EQ(rope({{"rotary_emb_base", 5e4}, {"rotary_pct", 0.5}}).dims, 8);
    EXPECT_EQ(rope(json::object()).dims, 4);  // a quarter
    EXPECT_EQ(rope({{"rope_parameters", {{"rope_theta", 5e4}, {"partial_rotary_factor", 1.0}}}}).dims, 16);
    EXPECT_EQ(rope({{"rotary_emb_base", 5e4}, {"rope_theta", 5e4}}).base, 5e4F);
    EXPECT_THAT(config_error("gpt_neox", edit({{"rotary_emb_base", 5e4}, {"rope_theta", 1e4}})),
                HasSubstr("'rotary_emb_base'"));
    EXPECT_THAT(config_error("gpt_neox", edit({{"rope_theta", 5e4}})), HasSubstr("'rope_theta' (50000.0)"));
    EXPECT_THAT(config_error("gpt_neox", edit({{"partial_rotary_factor", 1.0}})),
                HasSubstr("'partial_rotary_factor' (1.0)"));
}

json longrope(size_t count = 6) {
    return {{"type", "longrope"}, {"short_factor", json(count, 1.5)}, {"long_factor", json(count, 4.0)}};
}

TEST(ConfigRotation, LongRope) {
    const auto edit = [](int64_t original, json scaling) {
        return [=](json& c) {
            c["max_position_embeddings"] = 256;
            c["original_max_position_embeddings"] = original;
            c["rope_scaling"] = scaling;
        };
    };
    // Sequences beyond the context take the long factors, also where nothing was stretched.
    const ModelConfig equal = config_of("phi3", edit(256, longrope()));
    EXPECT_TRUE(equal.rope.long_factors);
    EXPECT_EQ(equal.rope.original_context, 256);
    EXPECT_EQ(equal.rope.attention_factor, 1.0F);
    // Its first files say "su" or "yarn".
    for (const char* type : {"su", "yarn"}) {
        json scaling = longrope();
        scaling["type"] = type;
        EXPECT_TRUE(config_of("phi3", edit(64, scaling)).rope.long_factors) << type;
    }
    EXPECT_THAT(config_error("phi3", edit(64, {{"type", "linear"}, {"factor", 2.0}})), HasSubstr("'linear'"));
    // transformers 5 has all of it in one object.
    const auto newer = [&](json more) {
        return [=](json& c) {
            edit(64, nullptr)(c);
            json parameters = longrope();
            parameters.update(more);
            c["rope_parameters"] = parameters;
        };
    };
    const auto magnitude = [](double factor) { return std::sqrt(1 + std::log(factor) / std::log(64.0)); };
    EXPECT_NEAR(config_of("phi3", newer({{"original_max_position_embeddings", 64}})).rope.attention_factor,
                magnitude(4), 1e-6);
    EXPECT_NEAR(config_of("phi3", newer({{"factor", 3.0}})).rope.attention_factor, magnitude(3), 1e-6);
    EXPECT_NEAR(config_of("phi3", newer({{"factor", 3.0}, {"attention_factor", 1.4}})).rope.attention_factor,
                1.4, 1e-6);
    EXPECT_THAT(config_error("phi3", newer({{"original_max_position_embeddings", 32}})),
                AllOf(HasSubstr("'original_max_position_embeddings' is 32"), HasSubstr("64")));
    // transformers 4 does not read this factor.
    json with_factor = longrope();
    with_factor["factor"] = 3.0;
    EXPECT_THAT(config_error("phi3", edit(64, with_factor)), HasSubstr("'rope_scaling.factor' (3)"));
    with_factor["factor"] = 4.0;
    EXPECT_EQ(config_error("phi3", edit(64, with_factor)), "no error");
}

TEST(ConfigRotation, GptOssIsStretchedUnlessItSaysOtherwise) {
    const auto without = [](json& c) {
        c.erase("rope_scaling");
        c.erase("rope_theta");
    };
    const Model model = with_config("gpt_oss", without);
    EXPECT_EQ(model.config.rope.base, 150000.0F);
    const auto factors = materialize(model, model.topology.globals.at(Slot::rope_freqs), Slot::rope_freqs);
    EXPECT_EQ(factors.back(), 32.0F);
    EXPECT_THAT(config_error("gpt_oss", [](json& c) { c["rope_scaling"] = nullptr; }),
                HasSubstr("'rope_scaling' is null"));
    const Model plain = with_config("gpt_oss", [&](json& c) {
        without(c);
        c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
    });
    EXPECT_FALSE(plain.topology.globals.contains(Slot::rope_freqs));
    EXPECT_EQ(plain.config.rope.base, 5e5F);
}

// ---- other names, other values ----

TEST(ConfigFields, WhatTransformers5WritesIntoEveryFile) {
    EXPECT_EQ(config_error("gpt_oss", [](json& c) { c["swiglu_alpha"] = 1.702; }), "no error");
    EXPECT_THAT(config_error("gpt_oss", [](json& c) { c["swiglu_alpha"] = 1.5; }),
                HasSubstr("'swiglu_alpha' (1.5)"));
    EXPECT_EQ(config_error("olmoe", [](json& c) { c["clip_qkv"] = nullptr; }), "no error");
    const auto renamed = [](json& c) {
        c["num_local_experts"] = c["num_experts"];
        c.erase("num_experts");
    };
    EXPECT_EQ(config_of("qwen3_moe", renamed).n_expert, 8);
    EXPECT_THAT(config_error(
                    "qwen3_moe", [](json& c) { c["num_local_experts"] = 5; }, ErrorCode::input),
                AllOf(HasSubstr("'num_experts' (8)"), HasSubstr("'num_local_experts' (5)")));
    const auto lists = [](const json& list) { return [=](json& c) { c["intermediate_size"] = list; }; };
    EXPECT_EQ(config_of("gemma3n", lists({40, 40, 40, 40})).n_ff, 40);
    EXPECT_THAT(config_error("gemma3n", lists({40, 40, 40}), ErrorCode::input),
                HasSubstr("'intermediate_size'"));
    EXPECT_THAT(config_error("llama_gqa", lists({40, 40}), ErrorCode::input),
                HasSubstr("'intermediate_size'"));
}

TEST(ConfigFields, ActivationOfGemma) {
    const auto activation = [](const json& own, const json& other) {
        return config_of("gemma",
                         [&](json& c) {
                             c["hidden_act"] = own;
                             c["hidden_activation"] = other;
                         })
            .activation;
    };
    EXPECT_EQ(activation("gelu", nullptr), Activation::gelu_tanh);  // the first files
    EXPECT_EQ(activation("gelu", "gelu_pytorch_tanh"), Activation::gelu_tanh);
    EXPECT_EQ(activation("relu", nullptr), Activation::relu);
    EXPECT_THAT(error_of([&] { activation("relu", "gelu_pytorch_tanh"); }, ErrorCode::unsupported),
                AllOf(HasSubstr("'hidden_act' ('relu')"), HasSubstr("'hidden_activation'")));
}

// See ACT2FN of transformers.
TEST(ConfigFields, NamesOfActivations) {
    const auto activation = [](const char* name) {
        return config_of("llama_gqa", [&](json& c) { c["hidden_act"] = name; }).activation;
    };
    EXPECT_EQ(activation("gelu_python"), Activation::gelu);
    EXPECT_EQ(activation("gelu_accurate"), Activation::gelu_tanh);
    EXPECT_EQ(activation("gelu_python_tanh"), Activation::gelu_tanh);
}

// Only gpt-oss computes it, whose files do not name it.
TEST(ConfigFields, TheActivationOfGptOssIsNoName) {
    for (const char* fixture : {"llama_gqa", "bert_hub", "gpt_oss"}) {
        const std::string error = config_error(fixture, [](json& c) { c["hidden_act"] = "swiglu_clamped"; });
        EXPECT_THAT(error, HasSubstr("'swiglu_clamped'")) << fixture;
        EXPECT_THAT(error, testing::Not(HasSubstr(", swiglu_clamped"))) << fixture;
    }
    Model model = load_model(fixture_path("llama_gqa"));
    model.metadata.set("refold.activation", GgufValue::string("swiglu_clamped"));
    EXPECT_THAT(error_of([&] { model.family->read_config(model.metadata); }, ErrorCode::unsupported),
                HasSubstr("refold.activation"));
    EXPECT_EQ(config_of("gpt_oss", [](json&) {}).activation, Activation::swiglu_clamped);
}

TEST(ConfigFields, OfAnotherModelTypeAreRefused) {
    const auto error = [](const char* fixture, const char* field, const json& value) {
        return config_error(fixture, [&](json& c) { c[field] = value; });
    };
    for (const auto& [fixture, field, value] : std::vector<std::tuple<const char*, const char*, json>>{
             {"mistral", "attention_bias", true},
             {"mistral", "mlp_bias", true},
             {"mixtral", "layer_sharing", true},
             {"qwen2", "share_embedding", true},
             {"gpt_neox", "num_key_value_heads", 2},
             {"gpt_neox", "head_dim", 32},
             {"stablelm", "head_dim", 32},
             {"bert_hub", "head_dim", 8},
             {"gpt2_hub", "rope_theta", 5e5},
             {"baichuan_7b", "rope_theta", 5e5},
             {"llama_gqa", "original_max_position_embeddings", 64},
             {"llama_gqa", "rotary_pct", 0.5},
             {"qwen3", "norm_topk_prob", true}})
        EXPECT_THAT(error(fixture, field, value), HasSubstr(std::string("field '") + field + "'")) << fixture;
}

TEST(ConfigFields, NullIsRefusedWhereTransformersRefusesIt) {
    for (const auto& [fixture, field] :
         std::vector<std::pair<const char*, const char*>>{{"llama_gqa", "rms_norm_eps"},
                                                          {"mixtral", "num_experts_per_tok"},
                                                          {"qwen3", "head_dim"},
                                                          {"gpt2_hub", "n_head"}}) {
        EXPECT_THAT(config_error(
                        fixture, [&](json& c) { c[field] = nullptr; }, ErrorCode::input),
                    HasSubstr(std::string("'") + field + "'"));
    }
    EXPECT_EQ(config_of("llama_gqa", [](json& c) { c["num_key_value_heads"] = nullptr; }).n_head_kv, 4);
    EXPECT_EQ(config_of("gemma2", [](json& c) { c["attn_logit_softcapping"] = nullptr; }).attention_softcap,
              0.0F);
}

TEST(ConfigFields, QuantizedWeightsAreRefusedClearly) {
    const json how = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
    EXPECT_THAT(config_error("llama_gqa", [&](json& c) { c["quantization_config"] = how; }),
                HasSubstr("weights quantized by 'fp8' are not supported"));
    EXPECT_EQ(config_error("llama_gqa", [&](json& c) { c["quantization_config"] = nullptr; }), "no error");
}

// ---- defaults ----

TEST(ConfigDefaults, AreThoseOfTransformers5) {
    const auto without = [](const char* fixture, const char* field) {
        return config_of(fixture, [&](json& c) { c.erase(field); });
    };
    EXPECT_EQ(without("cohere", "rope_theta").rope.base, 5e5F);
    EXPECT_EQ(without("cohere2", "rope_theta").rope.base, 1e4F);
    EXPECT_EQ(without("ernie4_5", "rope_theta").rope.base, 5e5F);
    EXPECT_EQ(without("mixtral", "rope_theta").rope.base, 1e6F);
    EXPECT_EQ(without("smollm3", "rope_theta").rope.base, 2e6F);
    EXPECT_EQ(without("gemma3", "rope_theta").rope.base, 1e6F);
    EXPECT_EQ(without("cohere", "logit_scale").logit_scale, 0.0625F);
    EXPECT_EQ(without("gemma2", "final_logit_softcapping").logit_softcap, 30.0F);
    // Absent, it is not the number of query heads.
    const auto heads = [](const char* fixture, int64_t queries) {
        return config_of(fixture,
                         [&](json& c) {
                             c.erase("num_key_value_heads");
                             c["num_attention_heads"] = queries;
                             c["head_dim"] = 8;
                         })
            .n_head_kv;
    };
    EXPECT_EQ(heads("mistral", 16), 8);
    EXPECT_EQ(heads("qwen3_moe", 16), 4);
    EXPECT_EQ(heads("smollm3", 16), 4);
    EXPECT_EQ(heads("ernie4_5", 16), 2);
    EXPECT_EQ(heads("llama_gqa", 16), 16);
    EXPECT_EQ(config_of("gptj",
                        [](json& c) {
                            c.erase("rotary_dim");
                            c["n_embd"] = 256;
                            c["n_head"] = 2;
                        })
                  .rope.dims,
              64);
}

// Leaving a field out and writing its default are the same, for every field of every fixture.
TEST(ConfigDefaults, OfEveryFieldCanBeLeftOut) {
    for (const auto& entry : std::filesystem::directory_iterator(fixture_path(""))) {
        const std::string fixture = entry.path().filename();
        const json given = fixture_config(fixture);
        const ReadableConfig readable = readable_config(given, false);
        for (const std::string& field : readable.known) {
            json without = given;
            if (without.erase(field) == 0 || !readable_config(without, false).fields.contains(field))
                continue;
            json with = without;
            with[field] = readable_config(without, false).fields[field];
            EXPECT_EQ(readable_config(with, false).fields, readable_config(without, false).fields)
                << fixture << ' ' << field;
        }
    }
}

// Fields of transformers' classes are read, known to change nothing, or refused by name.
TEST(ConfigFields, OfTransformersClassesAreAllChecked) {
    for (const auto& entry : std::filesystem::directory_iterator(fixture_path(""))) {
        const std::string fixture = entry.path().filename();
        const json given = fixture_config(fixture);
        const Family& family = *load_model(fixture_path(fixture)).family;
        for (const std::string& field : readable_config(given, false).known) {
            const bool is_free = std::ranges::any_of(family.hf_unread, [&](const UnreadField& rule) {
                return field == rule.name && rule.value == nullptr;
            });
            if (field == "model_max_length") continue;  // Baichuan's, of tokenizers elsewhere
            json odd = given;
            odd[field] = {{"odd", true}};
            const std::string error = any_error(fixture, [&](json& c) { c = odd; });
            if (!is_free) {
                EXPECT_THAT(error, HasSubstr(field)) << fixture;
            }
        }
    }
}

// ---- what is written is read again ----

void expect_same_again(const char* fixture, const EditConfig& edit) {
    const Model model = with_config(fixture, edit);
    const json written = model.family->write_hf_config(model);
    const ModelConfig again = config_of(fixture, [&](json& c) { c = written; });
    EXPECT_EQ(again.windows, model.config.windows) << fixture;
    EXPECT_EQ(again.n_head_kv, model.config.n_head_kv) << fixture;
    EXPECT_EQ(again.rope.ext_factor, model.config.rope.ext_factor) << fixture;
    EXPECT_EQ(again.rope.long_factors, model.config.rope.long_factors) << fixture;
    EXPECT_NEAR(again.rope.attention_factor, model.config.rope.attention_factor, 1e-6) << fixture;
    EXPECT_EQ(again.rope.base, model.config.rope.base) << fixture;
}

// Absent fields have defaults: they are written although they are the usual ones elsewhere.
TEST(ConfigsWritten, AreReadAgain) {
    const auto all_full = [](json& c) {
        const json layers = c["num_hidden_layers"];
        c["layer_types"] = json(layers.get<size_t>(), "full_attention");
    };
    for (const char* fixture : {"gemma2", "gemma3", "gemma3n", "cohere2", "mistral", "smollm3"})
        expect_same_again(fixture, all_full);
    expect_same_again("gpt_oss", [](json& c) { c["rope_scaling"] = {{"rope_type", "default"}}; });
    expect_same_again("mistral", [](json& c) {
        c["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
    });
    expect_same_again("qwen3_moe", [](json& c) {
        c["use_sliding_window"] = true;
        c["sliding_window"] = 7;
    });
    for (const double factor : {1.0, 1.4}) {
        expect_same_again("phi3", [&](json& c) {
            c["original_max_position_embeddings"] = 64;
            c["rope_scaling"] = longrope();
            if (factor != 1.0) c["rope_scaling"]["attention_factor"] = factor;
        });
    }
    for (const char* fixture : {"mixtral", "phi3", "qwen3_moe"}) {
        Model model = with_config(fixture, [](json&) {});
        model.config.windows = {7, 0, 7};
        EXPECT_THAT(error_of([&] { model.family->write_hf_config(model); }, ErrorCode::unsupported),
                    HasSubstr("has the window on every layer"));
    }
}

// ---- text models within others ----

json whole(const char* model_type, const json& text) {
    return {{"model_type", model_type}, {"text_config", text}, {"vision_config", {{"hidden_size", 8}}}};
}

std::string whole_error(const json& config, ErrorCode code = ErrorCode::unsupported) {
    return config_error(
        "mistral", [&](json& c) { c = config; }, code);
}

TEST(TextConfig, OfAnUnknownModelIsNamed) {
    const json text = fixture_config("mistral");
    EXPECT_EQ(whole_error(whole("mistral3", text)), "no error");
    json newer = text;
    newer["model_type"] = "ministral3";
    EXPECT_THAT(whole_error(whole("mistral3", newer)),
                AllOf(HasSubstr("text model of model_type 'mistral3'"), HasSubstr("\"ministral3\"")));
    EXPECT_THAT(whole_error(whole("llava", text)), HasSubstr("model_type 'llava' is not supported"));
    EXPECT_THAT(whole_error({{"model_type", "mistral3"}}, ErrorCode::input), HasSubstr("'text_config'"));
}

TEST(TextConfig, FieldsBesideItAreChecked) {
    json config = whole("mistral3", fixture_config("mistral"));
    config["image_token_index"] = 10;
    config["spatial_merge_size"] = 2;
    EXPECT_EQ(whole_error(config), "no error");
    config["depth_of_text"] = 3;
    EXPECT_THAT(whole_error(config), HasSubstr("'depth_of_text' (3)"));
    config.erase("depth_of_text");
    config["quantization_config"] = {{"quant_method", "fp8"}};
    EXPECT_THAT(whole_error(config), HasSubstr("'fp8'"));
    config.erase("quantization_config");
    config["tie_word_embeddings"] = !config["text_config"]["tie_word_embeddings"].get<bool>();
    EXPECT_THAT(whole_error(config), HasSubstr("'tie_word_embeddings'"));
}

}  // namespace
}  // namespace refold
