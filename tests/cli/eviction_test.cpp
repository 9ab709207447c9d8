// KV eviction on the command line: allocation, accounting and reports of a budget agree.
#include "cli/refold.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

using nlohmann::json;

const std::string kModel = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";
const std::string kText = std::string(REFOLD_FIXTURES) + "/README.md";

json perplexity(const std::string& model, std::vector<std::string> more) {
    std::vector<std::string> words = {"eval", "ppl",           model, "--text",    kText, "--context",
                                      "64",   "--max-windows", "2",   "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return refold_json(words);
}

TEST(Eviction, TheCacheHasTheBudget) {
    const TempFolder folder;
    const std::string shared = folder / "shared.gguf";
    ASSERT_EQ(
        refold({"compress", kModel, "-o", shared, "-m", "uniattn", "--set", "superblocks=0-1", "--quiet"})
            .code,
        0);
    for (const std::string& model : {kModel, shared}) {
        const json whole = perplexity(model, {});
        for (const char* policy : {"h2o", "recent"}) {
            for (const char* budget : {"0.25", "0.5"}) {
                const json part = perplexity(model, {"--kv-policy", policy, "--kv-budget", budget});
                const json accounted =
                    refold_json({"inspect", model, "--context", "64", "--kv-budget", budget})["kv_cache"];
                EXPECT_EQ(part["kv_bytes"], accounted["bytes"]) << model << policy << budget;
                EXPECT_LT(part["kv_bytes"], whole["kv_bytes"]) << policy << budget;
                EXPECT_NE(part["perplexity"], whole["perplexity"]) << policy << budget;
                EXPECT_EQ(part["kv_policy"], policy);
            }
        }
        EXPECT_EQ(perplexity(model, {"--kv-policy", "h2o"})["perplexity"], whole["perplexity"]);
    }
}

TEST(Eviction, RunAndBenchTakeTheSameOptions) {
    const std::vector<std::string> eviction = {"--kv-policy", "h2o",         "--kv-budget",
                                               "0.5",         "--kv-recent", "0.25"};
    std::vector<std::string> run = {"run", kModel,      "-p", "a b c",     "-n",
                                    "8",   "--context", "32", "--threads", "1"},
                             bench = {"bench",    kModel, "--baseline", "none", "--prefill", "24",
                                      "--decode", "8",    "--rounds",   "1",    "--threads", "1"};
    run.insert(run.end(), eviction.begin(), eviction.end());
    bench.insert(bench.end(), eviction.begin(), eviction.end());
    EXPECT_EQ(refold(run).code, 0);
    const json speed = refold_json(bench);
    EXPECT_EQ(speed["kv_policy"], "h2o");
    EXPECT_EQ(speed["kv_bytes"],
              refold_json({"inspect", kModel, "--context", "32", "--kv-budget", "0.5"})["kv_cache"]["bytes"]);
}

TEST(Eviction, WrongOptionsAreUsageErrors) {
    const std::vector<std::string> base = {"eval", "ppl", kModel, "--text", kText, "--context", "64"};
    const auto with = [&](std::vector<std::string> more) {
        std::vector<std::string> words = base;
        words.insert(words.end(), more.begin(), more.end());
        return refold(words);
    };
    EXPECT_EQ(with({"--kv-policy", "lru"}).code, 2);
    EXPECT_EQ(with({"--kv-policy", "h2o", "--kv-budget", "0"}).code, 2);
    EXPECT_EQ(with({"--kv-policy", "h2o", "--kv-budget", "1.5"}).code, 2);
    expect_error(with({"--kv-budget", "0.5"}), 2, {"--kv-policy"});
}

}  // namespace
}  // namespace refold
