// Every tensor of a checkpoint is read, known to change nothing, or an error that names it; every tensor that
// config.json announces is there, in all layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <regex>

#include "core/error_of.h"
#include "model/families/renamed_checkpoint.h"
#include "model/hf/checkpoint.h"
#include "model/materialize.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Those with one file of weights.
std::vector<std::string> fixtures() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(fixture_path(""))) {
        if (fs::exists(entry.path() / "model.safetensors")) names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
}

struct Extra {
    std::string name, dtype = "F32";
    std::vector<int64_t> shape;
    std::vector<std::byte> data;
};

Extra floats(const std::string& name, std::vector<int64_t> shape, float first = 0.25F) {
    size_t count = 1;
    for (const int64_t n : shape) count *= static_cast<size_t>(n);
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = first * static_cast<float>(i + 1);
    Extra out{name, "F32", std::move(shape), std::vector<std::byte>(count * sizeof(float))};
    memcpy(out.data.data(), values.data(), out.data.size());
    return out;
}

// A fixture's checkpoint with some tensors more and without others.
class Checkpoint {
public:
    explicit Checkpoint(std::string fixture)
        : fixture_(std::move(fixture)), config_(fixture_config(fixture_)) {}
    Checkpoint& with(Extra extra) {
        extras_.push_back(std::move(extra));
        return *this;
    }
    Checkpoint& without(const std::string& part) {
        dropped_ = part;
        return *this;
    }
    Checkpoint& says(const char* field, const json& value) {
        config_[field] = value;
        return *this;
    }
    Model load() {
        const std::string path = fs::path(folder / "x").parent_path();
        std::vector<SafetensorsOutput> more;
        for (const Extra& extra : extras_)
            more.push_back(
                {extra.name, extra.dtype, extra.shape, [&](const auto& sink) { sink(extra.data); }});
        write_renamed(
            fixture_, path, config_,
            [&](const std::string& name) {
                return !dropped_.empty() && name.find(dropped_) != name.npos ? "" : name;
            },
            [](const auto&, auto&) {}, more);
        return load_model(path);
    }
    std::string error() {
        try {
            load();
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    }
    TempFolder folder;

private:
    std::string fixture_;
    json config_;
    std::vector<Extra> extras_;
    std::string dropped_;
};

class EveryFamily : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Fixtures, EveryFamily, testing::ValuesIn(fixtures()),
                         [](const auto& test) { return test.param; });

TEST_P(EveryFamily, RefusesTensorsThatNothingReads) {
    EXPECT_EQ(Checkpoint(GetParam()).error(), "no error");
    for (const char* name :
         {"model.some_projector.weight", "counter", "model.layers.99.self_attn.q_proj.weight",
          "model.layers.0.self_attn.q_proj.lora_A.weight", "mtp.fc.weight"})
        EXPECT_THAT(Checkpoint(GetParam()).with(floats(name, {3})).error(),
                    AllOf(HasSubstr("nothing reads tensor"), HasSubstr(std::string("'") + name + "'")));
    EXPECT_THAT(Checkpoint(GetParam()).with({"counter", "I64", {1}, std::vector<std::byte>(8)}).error(),
                HasSubstr("'counter'"));
    EXPECT_EQ(
        Checkpoint(GetParam()).with(floats("model.layers.0.self_attn.rotary_emb.inv_freq", {4})).error(),
        "no error");
}

// No tensor that a checkpoint has is optional, but those that are known to change nothing.
TEST_P(EveryFamily, MissesTensorsThatAreNotThere) {
    const SafetensorsFile file = read_safetensors(fixture_path(GetParam()) + "/model.safetensors");
    const Model model = load_model(fixture_path(GetParam()));
    const auto read = checkpoint_record(model.metadata).types;
    const std::set<std::string> kept =
        unread_tensors(model.family, model.config, model.topology.layers.size());
    std::map<std::string, std::string> last;  // of those whose names differ in numbers
    for (const auto& [name, view] : file.tensors)
        if (read.contains(name)) last[std::regex_replace(name, std::regex("[0-9]+"), "#")] = name;
    for (const auto& [pattern, name] : last) {
        const bool shares_kv = !kept.empty() && name.find("self_attn") != name.npos;
        const bool part_of_encoder = !model.config.causal && name.find("layer") == name.npos;
        const std::string error = Checkpoint(GetParam()).without(name).error();
        if (!shares_kv && !part_of_encoder) {
            EXPECT_THAT(error, HasSubstr("is missing")) << name;
        }
    }
}

// ---- optional tensors ----

constexpr const char* kQ = "model.layers.1.self_attn.q_proj.bias";

TEST(OptionalTensors, AreReadWhereTheyAreAnnounced) {
    const auto biases = [](Checkpoint& checkpoint, size_t layers, bool all) -> Checkpoint& {
        for (size_t l = 0; l < layers; ++l) {
            const std::string attention = "model.layers." + std::to_string(l) + ".self_attn.";
            checkpoint.with(floats(attention + "q_proj.bias", {64}));
            if (!all) continue;
            checkpoint.with(floats(attention + "k_proj.bias", {32}));
            checkpoint.with(floats(attention + "v_proj.bias", {32}));
            checkpoint.with(floats(attention + "o_proj.bias", {64}));
        }
        return checkpoint;
    };
    const json config = fixture_config("llama_gqa");
    ASSERT_EQ(config["num_key_value_heads"], 2);
    const size_t layers = config["num_hidden_layers"];
    Checkpoint announced("llama_gqa");
    const Model model = biases(announced, layers, true).says("attention_bias", true).load();
    EXPECT_TRUE(model.topology.has(layers - 1, Slot::attn_o_bias));
    EXPECT_FALSE(model.topology.has(0, Slot::ffn_up_bias));
    // The last layer lacks them, or one of the four.
    Checkpoint fewer("llama_gqa");
    EXPECT_THAT(biases(fewer, layers - 1, true).says("attention_bias", true).error(),
                AllOf(HasSubstr(".self_attn.q_proj.bias' is missing"), HasSubstr("as config.json says")));
    Checkpoint queries("llama_gqa");
    EXPECT_THAT(biases(queries, layers, false).says("attention_bias", true).error(),
                HasSubstr("model.layers.0.self_attn.k_proj.bias' is missing"));
    // config.json says nothing, or false.
    Checkpoint stray("llama_gqa");
    EXPECT_THAT(biases(stray, layers, true).error(),
                AllOf(HasSubstr("nothing reads tensor"), HasSubstr("bias'"), HasSubstr("more")));
    EXPECT_THAT(Checkpoint("llama_gqa").says("attention_bias", false).with(floats(kQ, {64})).error(),
                HasSubstr(kQ));
    EXPECT_THAT(Checkpoint("llama_gqa").with(floats("model.layers.2.mlp.up_proj.bias", {128})).error(),
                HasSubstr("model.layers.2.mlp.up_proj.bias"));
}

TEST(OptionalTensors, OfFamiliesThatHaveNoField) {
    for (const char* fixture : {"mistral", "mixtral", "phi3", "qwen3", "gemma", "olmo2", "granitemoe"})
        EXPECT_THAT(Checkpoint(fixture).with(floats(kQ, {3})).error(), HasSubstr(kQ)) << fixture;
    const char* norm = "model.layers.1.self_attn.q_norm.weight";
    EXPECT_THAT(Checkpoint("cohere").with(floats(norm, {3})).error(), HasSubstr(norm));
    EXPECT_THAT(Checkpoint("cohere").says("use_qk_norm", true).error(),
                HasSubstr("q_norm.weight' is missing"));
    EXPECT_THAT(Checkpoint("stablelm").says("qk_layernorm", true).error(),
                HasSubstr("q_layernorm.norms.0.weight' is missing"));
    EXPECT_THAT(Checkpoint("gpt_neox").without("layers.1.attention.dense.bias").error(),
                HasSubstr("layers.1.attention.dense.bias' is missing"));
    EXPECT_THAT(Checkpoint("gpt_neox").says("attention_bias", false).error(),
                HasSubstr("nothing reads tensor"));
}

TEST(OptionalTensors, PartsOfEncodersAreComplete) {
    EXPECT_EQ(Checkpoint("bert_hub").without("pooler").error(), "no error");
    EXPECT_EQ(Checkpoint("bert_hub").without("cls.predictions").error(), "no error");
    EXPECT_THAT(Checkpoint("bert_hub").without("pooler.dense.bias").error(),
                HasSubstr("pooler.dense.bias' is missing"));
    EXPECT_THAT(Checkpoint("bert_hub").without("cls.predictions.transform.dense.bias").error(),
                HasSubstr("cls.predictions.transform.dense.bias' is missing"));
}

TEST(OptionalTensors, AClassifierHasARowForEachLabel) {
    for (const char* fixture : {"bert_score", "roberta_score"}) {
        const auto error = [&](const json& names, const json& count) {
            return Checkpoint(fixture).says("id2label", names).says("num_labels", count).error();
        };
        EXPECT_THAT(error({{"0", "a"}, {"1", "b"}}, nullptr),
                    AllOf(HasSubstr("'id2label'"), HasSubstr("2 labels"), HasSubstr("1 row")))
            << fixture;
        EXPECT_THAT(error(nullptr, nullptr), HasSubstr("2 labels")) << "transformers' default";
        EXPECT_THAT(error("a", nullptr), HasSubstr("'id2label' must be an object"));
        EXPECT_THAT(error(nullptr, 3), HasSubstr("3 labels"));
        EXPECT_EQ(error({{"0", "a"}}, 3), "no error") << "names come first";
    }
    const Model model = Checkpoint("bert_score").says("id2label", nullptr).says("num_labels", 1).load();
    EXPECT_TRUE(model.tensors.contains("score.weight"));
    EXPECT_THAT(Checkpoint("bert_score")
                    .without("classifier.weight")
                    .with(floats("classifier.weight", {2, 32}))
                    .error(),
                AllOf(HasSubstr("1 label"), HasSubstr("2 rows")));
}

// ---- tied weights ----

Extra copy_of(const std::string& fixture, const char* tensor, const char* name) {
    const SafetensorsFile file = read_safetensors(fixture_path(fixture) + "/model.safetensors");
    const SafetensorsView& view = file.tensors.at(tensor);
    return {name, view.dtype, view.shape, {view.data.begin(), view.data.end()}};
}

Extra changed(Extra extra) {
    extra.data[1] ^= std::byte{1};
    return extra;
}

TEST(TiedWeights, MayBeStoredTwiceIfTheyAreTheSame) {
    const Extra head = copy_of("qwen3", "model.embed_tokens.weight", "lm_head.weight");
    EXPECT_EQ(Checkpoint("qwen3").with(head).error(), "no error");
    EXPECT_THAT(
        Checkpoint("qwen3").with(changed(head)).error(),
        AllOf(HasSubstr("'lm_head.weight'"), HasSubstr("transformers 4"), HasSubstr("tie_word_embeddings")));
    EXPECT_TRUE(Checkpoint("qwen3")
                    .with(changed(head))
                    .says("tie_word_embeddings", false)
                    .load()
                    .tensors.contains("output.weight"));
    EXPECT_THAT(Checkpoint("qwen3").says("tie_word_embeddings", false).error(),
                HasSubstr("'lm_head.weight' is missing"));
}

TEST(TiedWeights, EitherMayBeLeftOut) {
    const Extra head = copy_of("qwen3", "model.embed_tokens.weight", "lm_head.weight");
    const Model model = Checkpoint("qwen3").with(head).without("embed_tokens").load(),
                expected = load_model(fixture_path("qwen3"));
    EXPECT_EQ(model.topology, expected.topology);
    EXPECT_EQ(floats_of(model, "token_embd.weight"), floats_of(expected, "token_embd.weight"));
    EXPECT_THAT(Checkpoint("qwen3").without("embed_tokens").error(),
                HasSubstr("embed_tokens.weight' is missing"));
}

TEST(TiedWeights, OneBiasOfBertUnderTwoNames) {
    const char *own = "cls.predictions.bias", *other = "cls.predictions.decoder.bias";
    const Extra bias = copy_of("bert_hub", own, other),
                decoder = copy_of("bert_hub", "bert.embeddings.word_embeddings.weight",
                                  "cls.predictions.decoder.weight");
    EXPECT_EQ(Checkpoint("bert_hub").with(bias).error(), "no error");
    EXPECT_THAT(Checkpoint("bert_hub").with(changed(bias)).error(),
                AllOf(HasSubstr(own), HasSubstr("versions")));
    const auto untied = [&] {
        auto out = std::make_unique<Checkpoint>("bert_hub");
        out->with(changed(decoder)).says("tie_word_embeddings", false);
        return out;
    };
    EXPECT_THAT(Checkpoint("bert_hub").says("tie_word_embeddings", false).error(),
                HasSubstr("cls.predictions.decoder.weight' is missing"));
    EXPECT_EQ(untied()->with(bias).error(), "no error");
    EXPECT_THAT(untied()->with(changed(bias)).error(), HasSubstr("versions"));
    EXPECT_THAT(untied()->error(), AllOf(HasSubstr(own), HasSubstr("transformers 5 then adds no bias")));
    EXPECT_EQ(untied()->with(bias).without("cls.predictions.bias").error(), "no error");
}

// ---- files ----

TEST(CheckpointFiles, OneFileHoldsWhateverTheIndexSays) {
    Checkpoint checkpoint("mistral");
    const Model expected = load_model(fixture_path("mistral"));
    checkpoint.load();
    std::ofstream(checkpoint.folder / "model.safetensors.index.json")
        << R"({"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}})";
    const Model model = load_model(fs::path(checkpoint.folder / "x").parent_path());
    EXPECT_EQ(model.topology, expected.topology);
    EXPECT_EQ(floats_of(model, "output.weight"), floats_of(expected, "output.weight"));
}

TEST(CheckpointFiles, TextOfMistralSmall) {
    for (const char* before : {"model.language_model.", "language_model.model."}) {
        TempFolder folder;
        const std::string path = fs::path(folder / "x").parent_path();
        const bool old = before[0] == 'l';
        const std::vector<std::byte> pixels(12);
        json text = fixture_config("mistral");
        write_renamed(
            "mistral", path,
            {{"model_type", "mistral3"},
             {"text_config", text},
             {"tie_word_embeddings", false},
             {"vision_config", {{"model_type", "pixtral"}}}},
            [&](const std::string& name) {
                if (name == "lm_head.weight") return (old ? "language_model." : "") + name;
                return before + name.substr(strlen("model."));
            },
            [](const auto&, auto&) {},
            {{"vision_tower.patch_conv.weight", "F32", {3}, [&](const auto& sink) { sink(pixels); }}});
        const Model model = load_model(path), expected = load_model(fixture_path("mistral"));
        EXPECT_EQ(model.topology, expected.topology);
        for (const auto& [name, tensor] : expected.tensors)
            EXPECT_EQ(floats_of(model, name), floats_of(expected, name)) << before << name;
    }
    // Beside a text model alone, other parts are not expected.
    EXPECT_THAT(Checkpoint("mistral").with(floats("vision_tower.patch_conv.weight", {3})).error(),
                HasSubstr("'vision_tower.patch_conv.weight'"));
}

}  // namespace
}  // namespace refold
