// `refold eval tasks` from data files to results.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "cli/refold.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kFixtures = REFOLD_FIXTURES;
const std::string kData = kFixtures + "/tasks";

std::vector<json> json_lines(const std::string& path) {
    std::vector<json> out;
    std::istringstream lines(read_all(path));
    for (std::string line; std::getline(lines, line);) out.push_back(json::parse(line));
    return out;
}

class EvalTasks : public testing::Test {
protected:
    EvalTasks() : model(folder / "model") {
        fs::create_directory(model);
        for (const char* part : {"hf/llama_gqa", "tokenizers/bpe_llama3"})
            for (const auto& entry : fs::directory_iterator(fs::path(kFixtures) / part))
                fs::copy_file(entry.path(), fs::path(model) / entry.path().filename(),
                              fs::copy_options::skip_existing);
    }
    std::vector<std::string> words(const std::string& tasks, std::vector<std::string> more) const {
        std::vector<std::string> all = {"eval",   "tasks", model,   "--tasks", tasks,
                                        "--data", kData,   "--f32", "-t",      "1"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }

    TempFolder folder;
    std::string model;
};

// tests/fixtures/tasks/lm_eval: lm-evaluation-harness's results for the same model and items.
TEST_F(EvalTasks, SamplesAreThoseOfLmEval) {
    const std::string samples = folder / "samples.jsonl", results = folder / "results.json";
    const Outcome outcome = refold(words("piqa", {"--limit", "20", "--samples", samples, "-o", results}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto ours = json_lines(samples), theirs = json_lines(kData + "/lm_eval/piqa.jsonl");
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
        for (const char* key : {"doc_id", "target", "arguments"})
            EXPECT_EQ(ours[i][key], theirs[i][key]) << i;
        for (const char* metric : {"acc", "acc_norm"}) EXPECT_EQ(ours[i][metric], theirs[i][metric]) << i;
        for (size_t c = 0; c < 2; ++c) {
            const double expected = theirs[i]["filtered_resps"][c][0];
            EXPECT_NEAR(std::stod(ours[i]["filtered_resps"][c][0].get<std::string>()), expected,
                        1e-5 * std::abs(expected));
        }
    }
    const json written = json::parse(read_all(results)),
               golden = json::parse(read_all(kData + "/lm_eval/piqa.json"));
    EXPECT_EQ(written["results"]["piqa"]["acc,none"], golden["acc,none"]);
    EXPECT_EQ(written["results"]["piqa"]["acc_norm,none"], golden["acc_norm,none"]);
    EXPECT_EQ(written["n-samples"]["piqa"]["effective"], 20);
    EXPECT_THAT(outcome.out,
                testing::HasSubstr("|Tasks|Version|Filter|n-shot| Metric |   |Value |   |Stderr|"));
    EXPECT_FALSE(fs::exists(results + ".work"));

    // The results name their samples, which a comparison pairs.
    EXPECT_THAT(refold({"compare", results, results}).out, testing::HasSubstr("McNemar"));
    json other = written;
    other["data"]["piqa"]["sha256"] = "00ff";
    other.erase("samples");
    write_all(folder / "other.json", other.dump());
    expect_error(refold({"compare", results, folder / "other.json"}), 1, {"different data", "piqa", "00ff"});
}

TEST_F(EvalTasks, LimitsAndShots) {
    const json out =
        refold_json(words("piqa,lambada_openai", {"--limit", "0.25", "--shots", "0", "--quiet"}));
    EXPECT_EQ(out["n-samples"]["piqa"], (json{{"original", 20}, {"effective", 5}}));
    EXPECT_EQ(out["n-shot"]["lambada_openai"], 0);
    EXPECT_TRUE(out["results"]["lambada_openai"].contains("perplexity_stderr,none"));
    EXPECT_EQ(out["config"]["limit"], 0.25);
}

// Answers in the work file are not evaluated again.
TEST_F(EvalTasks, GoesOnWhereItStopped) {
    const std::string results = folder / "results.json", work = results + ".work";
    const Outcome blocked =
        refold(words("piqa", {"--limit", "2", "-o", results, "--samples", folder / "none/x"}));
    EXPECT_EQ(blocked.code, 1);
    EXPECT_FALSE(fs::exists(work));
    write_all(work, "{\"key\":\"another run's\"}\n[0,0,-1.0,true]\n");
    const Outcome outcome = refold(words("piqa", {"--limit", "2", "-o", results}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, testing::Not(testing::HasSubstr("interrupted run")));
    EXPECT_FALSE(fs::exists(work));
}

TEST_F(EvalTasks, BadInput) {
    expect_error(refold(words("piqq", {})), 2, {"piqq", "piqa"});
    expect_error(refold(words("piqa", {"--kv-policy", "recent", "--kv-budget", "0.5"})), 2, {"--kv-policy"});
    expect_error(refold(words("piqa", {"--limit", "2", "--context", "2"})), 1, {"item 0", "--context"});
    expect_error(refold({"eval", "tasks", model, "--tasks", "piqa", "--data", folder / "none"}), 1, {"none"});
    const std::string kept = folder / "kept.json";
    write_all(kept, "x");
    expect_error(refold(words("piqa", {"-o", kept})), 2, {"--overwrite"});
    EXPECT_EQ(read_all(kept), "x");
}

}  // namespace
}  // namespace refold
