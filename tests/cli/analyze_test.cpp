// refold analyze.
#include <filesystem>

#include "cli/refold.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kModel = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";
const std::string kText = std::string(REFOLD_FIXTURES) + "/README.md";

class Analyze : public testing::Test {
protected:
    std::vector<std::string> variables() const { return {"REFOLD_CACHE=" + (folder / "cache")}; }
    // With a text cut into short sequences.
    std::vector<std::string> words(std::vector<std::string> more, const std::string& model = kModel) const {
        std::vector<std::string> out = {"analyze",           model, "--calib",        kText,
                                        "--sequence-length", "16",  "--calib-tokens", "96",
                                        "--threads",         "1"};
        out.insert(out.end(), more.begin(), more.end());
        return out;
    }
    json analysis(std::vector<std::string> more = {}, const std::string& model = kModel) const {
        return refold_json(words(std::move(more), model), "", variables());
    }
    Outcome outcome(std::vector<std::string> words) const {
        return refold(std::move(words), "", variables());
    }
    TempFolder folder;
};

TEST_F(Analyze, WithAndWithoutText) {
    const json all = analysis(), inspected = refold_json({"inspect", kModel});
    for (const char* key : {"weights", "spectra", "softmax", "heads", "modules"})
        EXPECT_TRUE(all.contains(key)) << key;
    EXPECT_EQ(all["text"]["sequences"], 6);
    EXPECT_EQ(all["text"]["tokens"], 96);
    const size_t layers = inspected["hyper_parameters"]["n_layer"];
    EXPECT_EQ(all["softmax"]["layer_cosine"].size(), layers);
    EXPECT_EQ(all["modules"]["layers"].size(), layers);
    const size_t heads = inspected["hyper_parameters"]["n_head"];
    EXPECT_EQ(all["heads"]["head_cosine"].size(), layers * heads);
    EXPECT_EQ(all["heads"]["degree"]["unit"], "kv_group");
    const json weights = refold_json({"analyze", kModel, "--no-cache"});
    EXPECT_TRUE(weights["text"].is_null());
    EXPECT_FALSE(weights.contains("softmax"));
    EXPECT_EQ(weights["weights"], all["weights"]);
    EXPECT_EQ(weights["spectra"], all["spectra"]);
    const std::string text = outcome(words({})).out;
    for (const char* part :
         {"heads by weights", "stable rank", "softmax similarity", "Degree", "whole layer"})
        EXPECT_THAT(text, HasSubstr(part));
}

TEST_F(Analyze, OnlyWhatIsAskedFor) {
    const json some = analysis({"--what", "modules,softmax"});
    EXPECT_TRUE(some.contains("modules") && some.contains("softmax"));
    EXPECT_FALSE(some.contains("heads") || some.contains("weights") || some.contains("spectra"));
    EXPECT_EQ(analysis({"--what", "heads", "--degree-repeats", "3"})["heads"]["degree"]["of_heads"]["samples"]
                  .size(),
              3U);
}

TEST_F(Analyze, SecondRunComesFromTheCache) {
    const json first = analysis();
    const auto cached = std::filesystem::directory_iterator(folder / "cache/analyze");
    EXPECT_EQ(std::distance(begin(cached), end(cached)), 5);
    const auto run = outcome(words({"--json"}));
    EXPECT_EQ(json::parse(run.out), first);
    EXPECT_EQ(analysis({"--no-cache"}), first);
}

TEST_F(Analyze, FolderOfCsvFiles) {
    const std::string out = folder / "analysis";
    ASSERT_EQ(outcome(words({"-o", out})).code, 0);
    const json written = json::parse(read_all(out + "/analysis.json"));
    EXPECT_EQ(written, analysis());
    const std::string csv = read_all(out + "/softmax_layer_cosine.csv");
    EXPECT_EQ(static_cast<size_t>(std::count(csv.begin(), csv.end(), '\n')),
              written["softmax"]["layer_cosine"].size() + 1);
    expect_error(outcome(words({"-o", out})), 2, {"exists", "--overwrite"});
    EXPECT_EQ(outcome(words({"-o", out, "--overwrite", "--what", "modules"})).code, 0);
    EXPECT_FALSE(std::filesystem::exists(out + "/softmax_layer_cosine.csv"));
    EXPECT_TRUE(std::filesystem::exists(out + "/modules_layers.csv"));
    expect_error(outcome(words({"-o", folder / "none/analysis"})), 1, {"none/analysis"});
}

TEST_F(Analyze, SharedAndLoopedModels) {
    const std::vector<std::pair<std::string, std::string>> steps = {
        {"direct_share", "ratio=0.3"}, {"recursive", "loops=2"}, {"drop", "layers=1"}};
    for (const auto& [method, setting] : steps) {
        const std::string model = folder / (method + ".gguf");
        const Outcome made = refold({"compress", kModel, "-o", model, "--method", method, "--set", setting});
        ASSERT_EQ(made.code, 0) << made.err;
        const json all = analysis({}, model);
        EXPECT_EQ(all["weights"]["ffn_module_cosine"].size(), all["layers"].get<size_t>()) << method;
        const bool none = all["softmax"]["layer_cosine"][1][1].is_null();
        EXPECT_EQ(none, method == "drop") << method;
    }
}

// Against the original: only where one is named, for it and no other.
TEST_F(Analyze, SharedAttention) {
    const std::string shared = folder / "shared.gguf";
    ASSERT_EQ(
        refold({"compress", kModel, "-o", shared, "--method", "uniattn", "--set", "superblocks=0-1"}).code,
        0);
    EXPECT_FALSE(analysis({}, shared).contains("sharing"));
    const json part = analysis({"--original", kModel}, shared)["sharing"];
    EXPECT_EQ(part["positions"], 16);
    ASSERT_EQ(part["layers"].size(), 1U);
    EXPECT_EQ(part["layers"][0]["source"], 0);
    EXPECT_GT(part["error_without"].get<double>(), 0);
    EXPECT_EQ(part["layers"][0]["error_without"], part["error_without"]);
    EXPECT_TRUE(part["error_with"].is_null());  // there is no W_c
    EXPECT_GT(part["depth_effect"].get<double>(), 0);
    EXPECT_THAT(outcome(words({"--original", kModel, "--what", "sharing"}, shared)).out, HasSubstr("1 (0)"));
    const std::string other = folder / "other.gguf";
    ASSERT_EQ(refold({"compress", kModel, "-o", other, "--method", "drop", "--set", "layers=0"}).code, 0);
    EXPECT_NE(analysis({"--original", other, "--what", "sharing"}, shared)["sharing"], part);
    expect_error(outcome(words({"--what", "sharing"}, shared)), 2, {"sharing", "--original"});
    expect_error(outcome(words({"--what", "sharing", "--original", kModel})), 1, {"no layer's attention"});
}

// Each record is a sequence of its own length, cut at --sequence-length; of an encoder too.
TEST_F(Analyze, RecordsAreSequences) {
    write_all(folder / "r.jsonl",
              "{\"text\": \"one two three four\"}\n{\"text\": \"one two\"}\n"
              "{\"instruction\": \"count to ten\", \"output\": \"one two three\"}\n");
    const std::string encoder = folder / "bert";  // weights and tokenizer, which lie apart in the fixtures
    for (const char* part : {"/hf/bert_hub", "/tokenizers/wordpiece_bert"})
        std::filesystem::copy(
            std::string(REFOLD_FIXTURES) + part, encoder,
            std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
    for (const std::string& model : {kModel, encoder}) {
        const json all =
            refold_json({"analyze", model, "--calib", folder / "r.jsonl", "--sequence-length", "8", "--what",
                         "softmax,heads", "--no-cache", "--degree-sample", "2", "--degree-repeats", "3"});
        EXPECT_EQ(all["text"]["sequences"], 3) << model;
        EXPECT_LE(all["text"]["tokens"], 24);
        EXPECT_EQ(all["softmax"]["sequences"], 3);
        EXPECT_NEAR(all["softmax"]["layer_cosine"][1][1].get<double>(), 1, 1e-6);
        EXPECT_EQ(all["heads"]["degree"]["of_pairs"]["samples"].size(), 3U);
    }
    expect_error(outcome({"analyze", kModel, "--calib", folder / "r.jsonl", "--calib", kText}), 2,
                 {"records"});
    write_all(folder / "bad.jsonl", "{\"text\": 3}\n");
    expect_error(outcome({"analyze", kModel, "--calib", folder / "bad.jsonl"}), 1, {"bad.jsonl", "line 1"});
}

TEST_F(Analyze, ErrorsSayWhatToDo) {
    expect_error(outcome(words({"--what", "softmx"})), 2,
                 {"unknown part 'softmx'", "did you mean 'softmax'?"});
    expect_error(outcome({"analyze", kModel, "--what", "softmax"}), 2, {"softmax", "--calib"});
    expect_error(
        outcome({"analyze", kModel, "--calib", kText, "--calib-tokens", "20", "--sequence-length", "16"}), 2,
        {"two sequences"});
    write_all(folder / "short.txt", "Two words.");
    expect_error(outcome({"analyze", kModel, "--calib", folder / "short.txt"}), 1,
                 {"short.txt", "longer text"});
    const std::string encoder = std::string(REFOLD_FIXTURES) + "/hf/bert_hub";
    expect_error(outcome(words({"--what", "modules"}, encoder)), 1, {"encoder", "--what modules"});
    EXPECT_TRUE(refold_json({"analyze", encoder, "--no-cache"}).contains("spectra"));
    expect_error(outcome(words({"--degree-ratio", "2"})), 2, {"--degree-ratio"});
}

}  // namespace
}  // namespace refold
