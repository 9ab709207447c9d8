// Models from config.json alone.
#include "model/hf/shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/temp_folder.h"
#include "core/text.h"
#include "model/accounting.h"
#include "model/materialize.h"
#include "model/paper_model.h"
#include "model/quantized.h"
#include "model/save.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class Shapes : public testing::Test {
protected:
    Model model_of(const json& config) {
        write_all(folder / "config.json", config.dump());
        return load_model(folder / "config.json");
    }
    Model model_of(const std::string& name, const std::function<void(json&)>& edit) {
        json fields = json::parse(read_text_file(paper_config(name)));
        edit(fields);
        return model_of(fields);
    }
    static uint64_t parameters_of(const std::string& name) {
        return account(paper_model(name)).model.parameters;
    }
    static std::string error_of(const std::function<void()>& act) {
        try {
            act();
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::input);
            return error.what();
        }
        return "no error";
    }
    TempFolder folder;
};

// The published checkpoints' numbers of parameters.
TEST_F(Shapes, ParametersOfThePapersModels) {
    EXPECT_EQ(parameters_of("llama2-7b"), 6'738'415'616U);
    EXPECT_EQ(parameters_of("llama2-13b"), 13'015'864'320U);
    EXPECT_EQ(parameters_of("tinyllama-1.1b"), 1'100'048'384U);
    EXPECT_EQ(parameters_of("gemma-2b"), 2'506'172'416U);
    EXPECT_EQ(parameters_of("pythia-1b"), 1'011'781'632U);
    EXPECT_EQ(parameters_of("gptj-6b"), 6'050'882'784U);
    EXPECT_EQ(parameters_of("roberta-base"), 124'697'433U);
    EXPECT_EQ(parameters_of("roberta-large"), 355'412'057U);
}

TEST_F(Shapes, EncodersHaveWhatTheirArchitectureNames) {
    const auto roberta = [&](const char* name) {
        const Model model =
            model_of("roberta-base", [&](json& c) { c["architectures"] = {std::string(name)}; });
        const auto& globals = model.topology.globals;
        return std::pair(globals.contains(Slot::head_dense) && globals.contains(Slot::output),
                         globals.contains(Slot::pooler));
    };
    EXPECT_EQ(roberta("RobertaForMaskedLM"), std::pair(true, false));
    EXPECT_EQ(roberta("RobertaModel"), std::pair(false, true));
    EXPECT_EQ(roberta("RobertaForPreTraining"), std::pair(true, true));
    // RobertaModel with its pooler.
    EXPECT_EQ(account(model_of("roberta-base", [](json& c) { c.erase("architectures"); })).model.parameters,
              124'645'632U);
}

TEST_F(Shapes, TypesAreTheCheckpoints) {
    const Model half = paper_model("llama2-7b");
    EXPECT_TRUE(half.shapes_only);
    EXPECT_EQ(half.tensor("blk.31.ffn_down.weight").type, DType::F16);
    EXPECT_EQ(half.tensor("blk.31.ffn_down.weight").shape, (std::vector<int64_t>{11008, 4096}));
    EXPECT_EQ(half.tensor("token_embd.weight").type, DType::F16);
    EXPECT_EQ(half.tensor("blk.0.attn_norm.weight").type, DType::F32);
    EXPECT_EQ(paper_model("gemma-2b").tensor("blk.0.attn_k.weight").type, DType::BF16);
    EXPECT_EQ(paper_model("gptj-6b").tensor("blk.0.attn_k.weight").type, DType::F32);
    const Model renamed = model_of("llama2-7b", [](json& c) {
        c.erase("torch_dtype");
        c["dtype"] = "bfloat16";
    });
    EXPECT_EQ(renamed.tensor("blk.0.attn_k.weight").type, DType::BF16);
}

TEST_F(Shapes, OptionalTensorsFollowTheFields) {
    EXPECT_FALSE(paper_model("llama2-7b").topology.has(0, Slot::attn_q_bias));
    const Model biased = model_of("llama2-7b", [](json& c) {
        c["attention_bias"] = true;
        c["mlp_bias"] = true;
        c["tie_word_embeddings"] = true;
        c["rope_scaling"] = {{"rope_type", "llama3"},
                             {"factor", 8.0},
                             {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0},
                             {"original_max_position_embeddings", 8192}};
    });
    EXPECT_TRUE(biased.topology.has(31, Slot::attn_o_bias));
    EXPECT_TRUE(biased.topology.has(31, Slot::ffn_gate_bias));
    EXPECT_FALSE(biased.tensors.contains("output.weight"));
    EXPECT_EQ(biased.topology.globals.at(Slot::output), Expression(Dense{"token_embd.weight"}));
    // These are not weights: config.json gives them.
    EXPECT_EQ(floats_of(biased, "rope_freqs.weight").back(), 8.0F);
    EXPECT_FALSE(model_of("pythia-1b", [](json& c) {
                     c["attention_bias"] = false;
                 }).topology.has(0, Slot::attn_q_bias));
}

// The real checkpoint has the same tensors as a model made from its config.json.
TEST_F(Shapes, AreThoseOfTheCheckpoint) {
    for (const auto& entry : fs::directory_iterator(fs::path(REFOLD_FIXTURES) / "hf")) {
        Model whole = load_model(entry.path());
        // Checkpoints of masked language models may have a pooler that config.json does not mention.
        if (whole.topology.globals.contains(Slot::head_dense)) {
            whole.topology.globals.erase(Slot::pooler);
            whole.topology.globals.erase(Slot::pooler_bias);
            whole.drop_unreferenced();
        }
        fs::copy_file(entry.path() / "config.json", folder / "config.json",
                      fs::copy_options::overwrite_existing);
        const Model bare = load_model(folder / "");
        EXPECT_EQ(bare.topology, whole.topology) << entry.path();
        EXPECT_EQ(bare.config.windows, whole.config.windows) << entry.path();
        ASSERT_EQ(bare.tensors.size(), whole.tensors.size()) << entry.path();
        for (const auto& [name, tensor] : whole.tensors) {
            EXPECT_EQ(bare.tensor(name).shape, tensor.shape) << entry.path() << " " << name;
        }
        EXPECT_EQ(account(bare).model.flops_per_token, account(whole).model.flops_per_token);
    }
}

TEST_F(Shapes, WeightsAreMissedWhereTheyAreNeeded) {
    const Model model = paper_model("tinyllama-1.1b");
    const auto missing = HasSubstr("no weights: only config.json was given");
    EXPECT_THAT(error_of([&] { floats_of(model, "output_norm.weight"); }), missing);
    EXPECT_THAT(error_of([&] { floats_of(model, "output_norm.weight"); }),
                HasSubstr(paper_config("tinyllama-1.1b")));
    EXPECT_THAT(error_of([&] { save_model(model, folder / "out.gguf", false); }), missing);
    EXPECT_THAT(error_of([&] { save_model(quantize_model(model, {}).model, folder / "out.gguf", false); }),
                missing);
    EXPECT_FALSE(fs::exists(folder / "out.gguf"));
    // Its cost when quantized is known anyway.
    EXPECT_EQ(account(quantize_model(model, {DType::Q8_0, {}, 1}).model).model.bytes,
              (1'100'048'384U - 45 * 2048U) / 32 * 34 + 45 * 2048U * 4);
}

TEST_F(Shapes, OnlyWhereThereAreNoWeights) {
    const auto bare = [&] { return is_bare_config(folder / ""); };
    EXPECT_FALSE(bare());
    fs::copy_file(paper_config("tinyllama-1.1b"), folder / "config.json");
    write_all(folder / "tokenizer.json", "{}");
    EXPECT_TRUE(bare());
    for (const char* name : {"model-00001-of-00002.safetensors", "model.safetensors.index.json",
                             "pytorch_model.bin", "tinyllama.gguf"}) {
        write_all(folder / name, "x");
        EXPECT_FALSE(bare()) << name;
        fs::remove(folder / name);
    }
    EXPECT_FALSE(is_bare_config(folder / "model.gguf"));
    EXPECT_THAT(error_of([&] { model_of(json::array({1})); }), HasSubstr("is not a JSON object"));
    EXPECT_THAT(error_of([&] { model_of("tinyllama-1.1b", [](json& c) { c.erase("hidden_size"); }); }),
                HasSubstr("'hidden_size' is missing"));
}

}  // namespace
}  // namespace refold
