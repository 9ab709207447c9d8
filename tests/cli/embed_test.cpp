// refold embed. The folder is a tiny BERT with files of sentence-transformers, whose results are in
// golden.json.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "cli/refold.h"
#include "cli/tiny_model.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;
using Vector = std::vector<float>;

class Embed : public testing::Test {
protected:
    Embed() {
        for (const char* file : {"config.json", "model.safetensors"})
            fs::copy_file(kFixtures + "/hf/bert_encoder/" + file, folder_ / file);
        for (const char* file : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"})
            fs::copy_file(kFixtures + "/tokenizers/wordpiece_bert_cased/" + file, folder_ / file);
        model_ = fs::path(folder_ / "");
    }

    // The files of a sentence-transformers model, as `variant` of the fixture has them.
    void configure(const std::string& variant) {
        fs::copy(kFixtures + "/sentence/" + variant, fs::path(folder_ / ""), fs::copy_options::recursive);
    }

    json run(std::vector<std::string> words) const {
        words.insert(words.begin(), {"embed", model_, "--f32"});
        return refold_json(std::move(words));
    }

    static void expect_near(const json& found, const json& expected) {
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < found.size(); ++i)
            EXPECT_THAT(found[i].get<Vector>(), Pointwise(FloatNear(2e-5F), expected[i].get<Vector>())) << i;
    }

    const json golden_ = json::parse(read_all(kFixtures + "/sentence/golden.json"));
    TempFolder folder_;
    std::string model_;
};

TEST_F(Embed, FollowsTheFolder) {
    const std::vector<std::string> texts = golden_["texts"];
    for (const auto& [variant, embeddings] : golden_["embeddings"].items()) {
        const TempFolder plain;
        for (const auto& file : fs::directory_iterator(folder_ / ""))
            fs::copy(file.path(), fs::path(plain / "") / file.path().filename());
        fs::copy(kFixtures + "/sentence/" + variant, fs::path(plain / ""), fs::copy_options::recursive);
        model_ = plain / "";
        SCOPED_TRACE(variant);
        const json found = run(texts);
        EXPECT_EQ(found["texts"], texts.size());
        EXPECT_EQ(found["dimensions"], embeddings[0].size());
        expect_near(found["embeddings"], embeddings);
    }
}

TEST_F(Embed, SurvivesGguf) {
    configure("dense");
    const std::string file = folder_ / "model.gguf";
    ASSERT_EQ(refold({"export", model_, "-o", file}).code, 0);
    model_ = file;
    expect_near(run(golden_["texts"])["embeddings"], golden_["embeddings"]["dense"]);
}

TEST_F(Embed, CutsAtTheLengthOfTheTokenizer) {
    configure("mean");
    const std::string text = golden_["texts"][4];
    const json cut = run({text});
    write_all(folder_ / "sentence_bert_config.json", "{}");
    EXPECT_NE(run({text}), cut);
    write_all(folder_ / "tokenizer_config.json",
              R"({"tokenizer_class": "BertTokenizer", "do_lower_case": false, "model_max_length": 16})");
    EXPECT_EQ(run({text}), cut);
}

TEST_F(Embed, SurvivesHuggingFaceFiles) {
    configure("dense");
    const std::string folder = folder_ / "again";
    ASSERT_EQ(refold({"export", model_, "--to", "hf", "-o", folder}).code, 0);
    model_ = folder;
    expect_near(run(golden_["texts"])["embeddings"], golden_["embeddings"]["dense"]);
}

TEST_F(Embed, PoolsAsAsked) {
    const json mean = run({"A text", "Another, longer text"});
    ASSERT_EQ(mean["embeddings"].size(), 2U);
    EXPECT_EQ(run({"A text", "--pooling", "mean"})["embeddings"][0], mean["embeddings"][0]);
    std::set<json> different{mean["embeddings"][0]};
    for (const char* pooling : {"cls", "max", "last"})
        EXPECT_TRUE(different.insert(run({"A text", "--pooling", pooling})["embeddings"][0]).second)
            << pooling;
    const Vector raw = mean["embeddings"][0], unit = run({"A text", "--normalize"})["embeddings"][0];
    double length = 0;
    for (const float x : raw) length += double{x} * double{x};
    for (size_t i = 0; i < raw.size(); ++i) EXPECT_NEAR(unit[i], raw[i] / std::sqrt(length), 1e-6);
    configure("mean");  // normalizes
    EXPECT_EQ(run({"A text"})["embeddings"][0].get<Vector>(), unit);
    EXPECT_EQ(run({"A text", "--no-normalize"})["embeddings"][0].get<Vector>(), raw);
    EXPECT_NE(run({"A text", "--pooling", "cls"})["embeddings"][0], mean["embeddings"][0]);
}

TEST_F(Embed, ReadsLinesAndWritesNumPy) {
    write_all(folder_ / "lines", "A text\r\nAnother, longer text\n\nlast");
    const json whole = run({"--file", folder_ / "lines"});
    EXPECT_EQ(run({"[a, b]", "[c]"})["texts"], 2);
    ASSERT_EQ(whole["texts"], 4);
    EXPECT_EQ(whole["embeddings"][0], run({"A text"})["embeddings"][0]);
    EXPECT_EQ(whole["embeddings"][2], run({""})["embeddings"][0]);
    const std::string out = folder_ / "out.npy";
    const json written = run({"--file", folder_ / "lines", "-o", out});
    const size_t columns = written["dimensions"];
    const std::string bytes = read_all(out), shape = "'shape': (4, " + std::to_string(columns) + "), }";
    EXPECT_TRUE(bytes.starts_with(std::string("\x93NUMPY\x01\x00", 8)));
    const size_t header = static_cast<unsigned char>(bytes[8]) + 256U * static_cast<unsigned char>(bytes[9]);
    EXPECT_EQ((header + 10) % 64, 0U);
    EXPECT_THAT(bytes.substr(10, header), HasSubstr("{'descr': '<f4', 'fortran_order': False, " + shape));
    ASSERT_EQ(bytes.size(), header + 10 + 16 * columns);
    Vector values(4 * columns);
    memcpy(values.data(), bytes.data() + header + 10, 16 * columns);
    const Vector second(values.begin() + static_cast<ptrdiff_t>(columns),
                        values.begin() + static_cast<ptrdiff_t>(2 * columns));
    EXPECT_EQ(second, whole["embeddings"][1].get<Vector>());
    expect_error(refold({"embed", model_, "A", "-o", out}), 2, {"exists", "--overwrite"});
    const Outcome lines = refold({"embed", model_, "A", "B", "--f32"});
    EXPECT_EQ(std::ranges::count(lines.out, '\n'), 2);
}

TEST_F(Embed, SaysWhatIsWrong) {
    expect_error(refold({"embed", model_}), 2, {"TEXT or --file"});
    expect_error(refold({"embed", model_, "A", "--pooling", "median"}), 2, {"median"});
    expect_error(refold({"embed", model_, "A", "--pool", "mean"}), 2, {"--pool"});
    expect_error(refold({"embed", model_, "--file", kModel, "A"}), 2, {"TEXT", "--file"});
    expect_error(refold({"embed", kModel, "A"}), 1, {"decoder"});
    expect_error(refold({"embed", model_, "--file", folder_ / "none"}), 1, {"none"});
    std::string text;
    for (int i = 0; i < 2000; ++i) text += "word ";
    expect_error(refold({"embed", model_, text}), 1, {"tokens"});
}

TEST_F(Embed, RefusesWhatItDoesNotKnow) {
    configure("mean");
    const auto change = [&](const std::string& file, const std::string& from, const std::string& to,
                            const std::string& named) {
        std::string whole = read_all(folder_ / file);
        const size_t at = whole.find(from);
        ASSERT_NE(at, std::string::npos) << file;
        write_all(folder_ / file, std::string(whole).replace(at, from.size(), to));
        SCOPED_TRACE(to);
        expect_error(refold({"embed", model_, "A"}), 1, {file.substr(0, file.find('/')), named});
        write_all(folder_ / file, whole);
    };
    change("modules.json", "models.Normalize", "models.LSTM", "models.LSTM");
    change("modules.json", "models.Pooling", "models.WeightedLayerPooling", "WeightedLayerPooling");
    change("1_Pooling/config.json", "\"include_prompt\": true", "\"include_prompt\": false",
           "include_prompt false");
    change("1_Pooling/config.json", "pooling_mode_mean_tokens", "pooling_mode_median_tokens",
           "pooling_mode_median_tokens");
    change("1_Pooling/config.json", "\"word_embedding_dimension\": 64", "\"word_embedding_dimension\": 63",
           "63 elements");
    change("sentence_bert_config.json", "do_lower_case", "do_upper_case", "do_upper_case");
    change("sentence_bert_config.json", "\"max_seq_length\": 16", "\"max_seq_length\": \"16\"",
           "max_seq_length");
    write_all(folder_ / "modules.json", "[");
    expect_error(refold({"embed", model_, "A"}), 1, {"modules.json"});
}

// What is not known only counts where it is asked for.
TEST_F(Embed, AnUnknownModuleLeavesTheEncoder) {
    configure("mean");
    std::string whole = read_all(folder_ / "modules.json");
    whole.replace(whole.find("models.Normalize"), 16, "models.LSTM");
    write_all(folder_ / "modules.json", whole);
    EXPECT_EQ(run({"A text", "--pooling", "cls"})["texts"], 1);
    EXPECT_EQ(refold({"inspect", model_}).code, 0);
}

}  // namespace
}  // namespace refold
