// Reading and writing Hugging Face directories, without running the models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/temp_folder.h"
#include "core/text.h"
#include "io/safetensors.h"
#include "io/torch_writer.h"
#include "model/gguf_model.h"
#include "model/hf/checkpoint.h"
#include "model/hf/export.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kFixtures = fs::path(REFOLD_FIXTURES) / "hf";

std::vector<std::string> all_models() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(kFixtures)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

// All tensors of a directory: name -> type and bytes.
std::map<std::string, std::pair<std::string, std::vector<std::byte>>> tensors_of(const fs::path& folder) {
    std::map<std::string, std::pair<std::string, std::vector<std::byte>>> out;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().extension() != ".safetensors" || entry.path().filename() == "golden.safetensors")
            continue;
        const SafetensorsFile file = read_safetensors(entry.path());
        for (const auto& [name, view] : file.tensors)
            out[name] = {view.dtype, {view.data.begin(), view.data.end()}};
    }
    return out;
}

// Tensors that a model does not read: buffers and heads of other tasks.
bool ignored(const std::string& name) {
    return name.ends_with(".attn.bias") || name.find("seq_relationship") != std::string::npos ||
           name.starts_with("sop_classifier");
}

class RoundTrips : public testing::TestWithParam<std::string> {
protected:
    TempFolder folder;
    fs::path source = kFixtures / GetParam();
};
INSTANTIATE_TEST_SUITE_P(Families, RoundTrips, testing::ValuesIn(all_models()),
                         [](const auto& test) { return test.param; });

TEST_P(RoundTrips, RoundTripIsBitIdentical) {
    const Model model = load_model(source);
    const std::string native = folder / "native.gguf", out = folder / "out";
    save_model(model, native, false);
    save_hf_model(load_model(native), out, {});
    auto expected = tensors_of(source);
    std::erase_if(expected, [](const auto& entry) { return ignored(entry.first); });
    EXPECT_EQ(tensors_of(out), expected);
    EXPECT_EQ(json::parse(read_text_file(out + "/config.json")),
              json::parse(read_text_file(source / "config.json")));
}

TEST_P(RoundTrips, ReadsBackFromItsOwnConfiguration) {
    // Like a model that did not come from a directory: config.json is made from the model alone.
    Model model = load_model(source);
    const GgufMetadata all = model.metadata;
    for (const auto& [key, value] : all.entries()) {
        if (key.starts_with("refold.checkpoint")) model.metadata.erase(key);
    }
    if (model.topology.globals.contains(Slot::rope_freqs))
        GTEST_SKIP() << "factors do not say where they came from";
    save_hf_model(model, folder / "out", {});
    const Model again = load_model(folder / "out");
    EXPECT_EQ(again.topology, model.topology);
    EXPECT_EQ(again.config.windows, model.config.windows);
    EXPECT_NEAR(again.config.attention_scale, model.config.attention_scale, 1e-6);
    EXPECT_EQ(again.config.norm_head, model.config.norm_head);
    EXPECT_EQ(again.config.activation, model.config.activation);
    EXPECT_EQ(again.config.rope.dims, model.config.rope.dims);
    for (const auto& [name, tensor] : model.tensors) {
        const auto slot_bytes = [&](const Model& m) {
            const TensorBytes bytes(m.tensor(name));
            return std::vector<std::byte>(bytes.bytes().begin(), bytes.bytes().end());
        };
        EXPECT_EQ(slot_bytes(again), slot_bytes(model)) << name;
    }
}

TEST_P(RoundTrips, ShardsHoldTheSame) {
    const Model model = load_model(source);
    HfExportOptions options;
    options.shard_bytes = 100'000;
    const HfExport result = save_hf_model(model, folder / "out", options);
    EXPECT_GT(result.files, 1U);
    auto expected = tensors_of(source);
    std::erase_if(expected, [](const auto& entry) { return ignored(entry.first); });
    EXPECT_EQ(tensors_of(folder / "out"), expected);
    const json index = json::parse(read_text_file((folder / "out") + "/model.safetensors.index.json"));
    EXPECT_EQ(index["weight_map"].size(), expected.size());
    EXPECT_EQ(index["metadata"]["total_size"], result.bytes);
    EXPECT_EQ(load_model(folder / "out").topology, model.topology);
}

// The same tensors as PyTorch saves them, in two shards with an index.
TEST_P(RoundTrips, PytorchFilesHoldTheSame) {
    std::map<std::string, SafetensorsView> shards[2];
    std::vector<SafetensorsFile> files;  // the tensors' bytes
    json index;
    for (const auto& entry : fs::directory_iterator(source)) {
        if (entry.path().extension() != ".safetensors" || entry.path().filename() == "golden.safetensors")
            continue;
        files.push_back(read_safetensors(entry.path()));
        for (const auto& [name, view] : files.back().tensors) {
            const size_t shard = index["weight_map"].size() % 2;
            shards[shard].emplace(name, view);
            index["weight_map"][name] = fmt::format("pytorch_model-0000{}-of-00002.bin", shard + 1);
        }
    }
    fs::create_directory(folder / "torch");
    for (size_t i = 0; i < 2; ++i)
        write_all(fmt::format("{}/torch/pytorch_model-0000{}-of-00002.bin", folder / "", i + 1),
                  TorchWriter::file(shards[i]));
    write_all(folder / "torch/pytorch_model.bin.index.json", index.dump());
    fs::copy_file(source / "config.json", folder / "torch/config.json");
    save_hf_model(load_model(folder / "torch"), folder / "out", {});
    auto expected = tensors_of(source);
    std::erase_if(expected, [](const auto& entry) { return ignored(entry.first); });
    EXPECT_EQ(tensors_of(folder / "out"), expected);
}

// Beside a tokenizer there may be anything.
TEST(SavedTokenizer, HasTheFoldersThatModulesNames) {
    const TempFolder folder;
    const fs::path source = folder / "source", out = folder / "out";
    fs::copy(kFixtures / "bert_encoder", source);
    fs::copy(fs::path(REFOLD_FIXTURES) / "sentence/dense", source, fs::copy_options::recursive);
    fs::create_directory(source / "2024_photos");
    write_all(source / "2024_photos/cat.jpg", "cat");
    fs::create_directory(out);
    save_hf_tokenizer(load_model(source), out);
    EXPECT_FALSE(fs::exists(out / "2024_photos"));
    EXPECT_TRUE(fs::exists(out / "1_Pooling/config.json"));
    EXPECT_TRUE(fs::exists(out / "3_Dense/model.safetensors"));
    write_all(source / "modules.json",
              R"([{"path": ""}, {"path": ".."}, {"path": "../source/2024_photos"}, 3])");
    Model model = load_model(kFixtures / "mistral");
    model.label = source;
    fs::create_directory(folder / "other");
    save_hf_tokenizer(model, folder / "other");
    for (const auto& entry : fs::directory_iterator(folder / "other"))
        EXPECT_TRUE(entry.is_regular_file()) << entry.path();
}

// RobertaForSequenceClassification has its pooler in the classifier.
TEST(RobertaScorer, IsNamedAsInTransformers) {
    for (const char* name : {"roberta_score", "xlm_roberta_score"}) {
        Model model = load_model(kFixtures / name);
        model.metadata.erase("refold.checkpoint");
        model.label = "model.gguf";
        const TempFolder folder;
        save_hf_model(model, folder / "out", {});
        EXPECT_EQ(tensors_of(folder / "out"), tensors_of(kFixtures / name)) << name;
    }
}

// ---- malformed directories ----

class Directory : public testing::Test {
protected:
    void SetUp() override {
        for (const char* file : {"config.json", "model.safetensors"})
            fs::copy_file(kFixtures / "mistral" / file, folder / file);
    }
    void edit_config(const std::function<void(json&)>& edit) {
        json config = json::parse(read_text_file(folder / "config.json"));
        edit(config);
        std::ofstream(folder / "config.json") << config.dump();
    }
    std::string error() {
        try {
            load_model(fs::path(folder / "config.json").parent_path());
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    }
    TempFolder folder;
};

TEST_F(Directory, UnknownModelTypeListsTheKnownOnes) {
    edit_config([](json& c) { c["model_type"] = "mamba"; });
    EXPECT_THAT(error(), testing::AllOf(testing::HasSubstr("'mamba'"), testing::HasSubstr("gpt_neox"),
                                        testing::HasSubstr("roberta")));
}

TEST_F(Directory, MissingField) {
    edit_config([](json& c) { c.erase("hidden_size"); });
    EXPECT_THAT(error(), testing::HasSubstr("field 'hidden_size' is missing"));
}

TEST_F(Directory, FieldOfAnotherKind) {
    edit_config([](json& c) { c["num_attention_heads"] = "four"; });
    EXPECT_THAT(error(), testing::HasSubstr("'num_attention_heads' must be a whole number"));
}

TEST_F(Directory, ContradictoryFields) {
    edit_config([](json& c) { c["num_key_value_heads"] = 3; });
    EXPECT_THAT(error(), testing::HasSubstr("contradict"));
}

TEST_F(Directory, UnknownRopeScaling) {
    edit_config([](json& c) { c["rope_scaling"] = {{"rope_type", "ntk"}, {"factor", 2.0}}; });
    EXPECT_THAT(error(), testing::HasSubstr("'ntk' is not supported; known: default, linear"));
}

// Files of newer versions of transformers.
TEST_F(Directory, NewerFieldsMeanTheSame) {
    const fs::path gemma = kFixtures / "gemma3";
    fs::copy_file(gemma / "config.json", folder / "config.json", fs::copy_options::overwrite_existing);
    fs::copy_file(gemma / "model.safetensors", folder / "model.safetensors",
                  fs::copy_options::overwrite_existing);
    edit_config([](json& c) {
        c["rope_parameters"] = {
            {"full_attention", {{"rope_type", "default"}, {"rope_theta", c["rope_theta"]}}},
            {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 12345.0}}}};
        for (const char* field :
             {"rope_theta", "rope_scaling", "rope_local_base_freq", "sliding_window_pattern"})
            c.erase(field);
        c["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
    });
    const Model model = load_model(fs::path(folder / "config.json").parent_path());
    EXPECT_EQ(model.config.rope.base, 1e6F);
    EXPECT_EQ(model.config.local_rope->base, 12345.0F);
    EXPECT_EQ(model.config.windows, (std::vector<int64_t>{16, 0, 0, 16}));
}

TEST_F(Directory, ShapeNamesBothShapes) {
    edit_config([](json& c) { c["intermediate_size"] = 130; });
    EXPECT_THAT(error(), testing::AllOf(testing::HasSubstr("mlp.gate_proj.weight"),
                                        testing::HasSubstr("[128, 64]"), testing::HasSubstr("[130, 64]")));
}

TEST_F(Directory, MissingTensorIsNamed) {
    edit_config([](json& c) { c["num_hidden_layers"] = 5; });
    EXPECT_THAT(error(), testing::HasSubstr("'model.layers.4.input_layernorm.weight' is missing"));
}

TEST_F(Directory, BiasesThatOnlyTheConfigurationHas) {
    for (const char* file : {"config.json", "model.safetensors"})
        fs::copy_file(kFixtures / "llama_gqa" / file, folder / file, fs::copy_options::overwrite_existing);
    edit_config([](json& c) { c["attention_bias"] = true; });
    EXPECT_THAT(error(), testing::HasSubstr("'model.layers.0.self_attn.q_proj.bias' is missing"));
}

TEST_F(Directory, UntiedOutputMustBeThere) {
    fs::copy_file(kFixtures / "llama_gqa/config.json", folder / "config.json",
                  fs::copy_options::overwrite_existing);
    fs::copy_file(kFixtures / "llama_gqa/model.safetensors", folder / "model.safetensors",
                  fs::copy_options::overwrite_existing);
    EXPECT_EQ(error(), "no error");
    edit_config([](json& c) { c["tie_word_embeddings"] = false; });
    EXPECT_THAT(error(), testing::HasSubstr("'lm_head.weight' is missing"));
}

TEST_F(Directory, ATokenizerThatCannotBeRunIsNamedInTheModel) {
    write_all(folder / "tokenizer.json", R"({"model": {"type": "WordLevel", "vocab": {"a": 0}}})");
    const Model model = load_model(fs::path(folder / "config.json").parent_path());
    EXPECT_EQ(model.metadata.string("tokenizer.ggml.model"), "none");
    EXPECT_THAT(model.metadata.string("refold.tokenizer.unsupported"), testing::HasSubstr("WordLevel"));
}

TEST_F(Directory, AGgufTensorThatNothingReadsIsRefused) {
    Model model = load_model(kFixtures / "mistral");
    EXPECT_NO_THROW(gguf_model(model.metadata, model.tensors));
    model.tensors["blk.0.attn_sinks.weight"] = model.tensor("output_norm.weight");
    EXPECT_THROW(gguf_model(model.metadata, model.tensors), Error);
    EXPECT_THROW(save_model(model, folder / "more.gguf", false), Error);
}

TEST_F(Directory, NoWeights) {
    fs::remove(folder / "model.safetensors");
    EXPECT_TRUE(load_model(folder / "").shapes_only);
    std::ofstream(folder / "pytorch_model.bin") << "x";
    EXPECT_THAT(error(), testing::HasSubstr("no zip archive"));
}

TEST_F(Directory, NoConfig) {
    fs::remove(folder / "config.json");
    EXPECT_THAT(error(), testing::HasSubstr("config.json"));
}

TEST_F(Directory, BrokenIndex) {
    fs::rename(folder / "model.safetensors", folder / "weights.safetensors");
    const auto index = [&](const std::string& text) {
        std::ofstream(folder / "model.safetensors.index.json") << text;
    };
    index("{");
    EXPECT_THAT(error(), testing::HasSubstr("not valid JSON"));
    index("{}");
    EXPECT_THAT(error(), testing::HasSubstr("no 'weight_map'"));
    index(R"({"weight_map": {"a": "../model.safetensors"}})");
    EXPECT_THAT(error(), testing::HasSubstr("not in a file of this folder"));
    index(R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
    EXPECT_THAT(error(), testing::HasSubstr("is missing, which the index names"));
    index(R"({"weight_map": {"a": "weights.safetensors"}})");
    EXPECT_THAT(error(), testing::HasSubstr("where the index expects it"));
}

TEST_F(Directory, NothingIsWrittenWhenTheExportFails) {
    Model model = load_model(kFixtures / "llama_gqa");
    model.metadata.erase("refold.checkpoint");
    EXPECT_THROW(save_hf_model(model, folder / "out", {}), Error);
    EXPECT_FALSE(fs::exists(folder / "out"));
    EXPECT_EQ(std::distance(fs::directory_iterator(fs::path(folder / "config.json").parent_path()), {}), 2);
}

TEST_F(Directory, AFolderThatExistsIsKept) {
    fs::create_directory(folder / "out");
    std::ofstream(folder / "out/mine") << "x";
    const Model model = load_model(kFixtures / "mistral");
    EXPECT_THROW(save_hf_model(model, folder / "out", {}), Error);
    EXPECT_TRUE(fs::exists(folder / "out/mine"));
    save_hf_model(model, folder / "out", {true, {}, 5'000'000'000});
    EXPECT_EQ(read_text_file(folder / "out/mine"), "x");
    EXPECT_TRUE(fs::exists(folder / "out/model.safetensors"));
}

}  // namespace
}  // namespace refold
