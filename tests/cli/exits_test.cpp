// Early exit in `eval`.
#include <filesystem>
#include <sstream>

#include "cli/refold.h"
#include "eval/excerpt.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

const std::string kFixtures = REFOLD_FIXTURES;
const std::string kFlat = kFixtures + "/llama_gqa/model.gguf";

std::string looped(const std::string& source, const TempFolder& folder) {
    const std::string path = folder / "looped.gguf";
    const Outcome made = refold({"compress", source, "-o", path, "--method", "relax", "--set", "loops=2",
                                 "--set", "init=average", "--set", "rank=4", "--set", "norms=keep", "-q"});
    EXPECT_EQ(made.code, 0) << made.err;
    return path;
}

class Exits : public testing::Test {
protected:
    Exits() : model(looped(kFlat, folder)) { write_all(folder / "text", excerpt(12)); }

    std::vector<std::string> ppl(std::vector<std::string> more) const {
        std::vector<std::string> words = {"eval", "ppl", model,   "--text",    folder / "text",
                                          "-t",   "1",   "--f32", "--context", "64"};
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }
    json exit_of(std::vector<std::string> more) const {
        const json result = refold_json(ppl(std::move(more)));
        EXPECT_TRUE(result.contains("exit")) << result;
        return result["exit"];
    }

    TempFolder folder;
    std::string model;
};

TEST_F(Exits, TheLastLoopIsTheFullModel) {
    const json plain = refold_json(ppl({})), last = refold_json(ppl({"--exit", "fixed", "--exit-loop", "2"}));
    EXPECT_FALSE(plain.contains("exit"));
    EXPECT_NEAR(last["mean_nll"], plain["mean_nll"].get<double>(), 1e-4);
    EXPECT_EQ(last["exit"]["agreement"], 1);
    EXPECT_EQ(last["exit"]["mean_loops"], 2);
    EXPECT_EQ(last["exit"]["exits"], json({0, last["tokens_scored"]}));
    EXPECT_EQ(last["exit"]["at_loop"][1]["perplexity"], last["perplexity"]);
}

TEST_F(Exits, ByThresholdOfEveryRuleAndPolicy) {
    for (const std::string kv : {"catch-up", "propagate", "share"}) {
        const json e =
            exit_of({"--exit", "entropy", "--exit-threshold", "5.5", "--exit-kv", kv, "--max-windows", "3"});
        EXPECT_EQ(e["rule"], "entropy");
        EXPECT_EQ(e["thresholds"], json({5.5}));
        EXPECT_EQ(e["kv"], kv);
        EXPECT_EQ(e["loops"], 2);
        EXPECT_EQ(e["exits"][0].get<int>() + e["exits"][1].get<int>(), 3 * 63);
    }
    EXPECT_EQ(exit_of({"--exit", "margin", "--exit-threshold", "0", "--max-windows", "1"})["mean_loops"], 1);
    const Outcome text =
        refold(ppl({"--exit", "probability", "--exit-threshold", "0.01", "--max-windows", "1"}));
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out,
                HasSubstr("exits: probability of 0.01 or more, keys and values: catch-up\nafter loop 1: "));
    EXPECT_THAT(text.out, HasSubstr("\nall tokens after loop 2: perplexity "));
}

// A file with exit maps can be compressed, quantized and evaluated like any model.
TEST_F(Exits, ThroughMaps) {
    const json without = exit_of({"--exit", "fixed", "--exit-loop", "1"});
    const std::string mapped = folder / "mapped.gguf", small = folder / "small.gguf";
    const Outcome refused = refold({"compress", model, "-o", mapped, "--method", "exit_map", "-q"});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("--calib"));
    write_all(folder / "calib", excerpt(48));
    const Outcome made = refold({"compress", model, "-o", mapped, "--method", "exit_map", "--set", "rank=64",
                                 "--calib", folder / "calib", "--calib-tokens", "2048", "-q"});
    ASSERT_EQ(made.code, 0) << made.err;
    EXPECT_THAT(made.out, HasSubstr("exit after loop 1: "));
    const Outcome quantized = refold({"quantize", mapped, "--type", "q8_0", "-o", small, "-q"});
    ASSERT_EQ(quantized.code, 0) << quantized.err;
    const json dense = without["at_loop"][1];
    for (const std::string& path : {mapped, small}) {
        model = path;
        const json with = exit_of({"--exit", "fixed", "--exit-loop", "1"});
        EXPECT_GT(with["at_loop"][0]["agreement"], without["at_loop"][0]["agreement"]);
        EXPECT_LT(with["at_loop"][0]["perplexity"], without["at_loop"][0]["perplexity"]);
        EXPECT_NEAR(with["at_loop"][1]["perplexity"], dense["perplexity"].get<double>(),
                    (path == mapped ? 1e-4 : 2e-2) * dense["perplexity"].get<double>());
    }
}

TEST_F(Exits, TheOraclesTrajectoryIsWritten) {
    const std::string path = folder / "exits.jsonl";
    const json e = exit_of({"--exit", "oracle", "--exit-trajectory", path, "--max-windows", "4"});
    EXPECT_EQ(e["agreement"], 1);
    EXPECT_EQ(e["rule"], "oracle");
    std::istringstream lines(read_all(path));
    std::string line;
    std::getline(lines, line);
    const json header = json::parse(line);
    EXPECT_EQ(header["format"], "refold exits");
    EXPECT_EQ(header["loops"], 2);
    EXPECT_EQ(header["rule"], "oracle");
    EXPECT_EQ(header["model"]["path"], model);
    int count = 0, second = 0;
    while (std::getline(lines, line)) {
        const json sequence = json::parse(line)["exits"];
        EXPECT_EQ(sequence.size(), 63u);
        ++count;
        for (const json& loop : sequence) second += loop == 2 ? 1 : 0;
    }
    EXPECT_EQ(count, 4);
    EXPECT_EQ(second, e["exits"][1]);
    expect_error(refold(ppl({"--exit", "oracle", "--exit-trajectory", path})), 2, {"--overwrite"});
}

TEST_F(Exits, ThresholdsFromAWantedAgreement) {
    const std::vector<std::string> calib = {"--calib", folder / "text", "--calib-tokens", "512"};
    double before = 0;
    for (const std::string wanted : {"0.5", "0.9", "1"}) {
        std::vector<std::string> words = {"--exit", "probability",   "--exit-agreement",
                                          wanted,   "--max-windows", "1"};
        words.insert(words.end(), calib.begin(), calib.end());
        const json c = exit_of(words)["calibration"];
        EXPECT_GE(c["agreement"].get<double>(), std::stod(wanted));
        EXPECT_EQ(c["wanted_agreement"], std::stod(wanted));
        EXPECT_GE(c["thresholds"][0].get<double>(), before);
        before = c["thresholds"][0];
        EXPECT_EQ(c["texts"][0]["name"], "text");
    }
}

TEST_F(Exits, WhatDoesNotFitIsRefused) {
    const auto refused = [&](std::vector<std::string> more, const std::string& part) {
        expect_error(refold(ppl(std::move(more))), 2, {part});
    };
    refused({"--exit", "entrop"}, "did you mean 'entropy'?");
    refused({"--exit", "fixed"}, "loop 0 of a model of 2 loops");
    refused({"--exit", "fixed", "--exit-loop", "3"}, "expected 1 to 2");
    refused({"--exit-loop", "1"}, "--exit-loop requires --exit");
    refused({"--exit", "margin"}, "margin needs a threshold");
    refused({"--exit", "margin", "--exit-threshold", "0.1,0.2"}, "2 thresholds for a model of 2 loops");
    refused({"--exit", "margin", "--exit-threshold", "0.1,"}, "expected numbers as in 0.9 or 0.9,0.8");
    refused({"--exit", "margin", "--exit-threshold", "2"}, "expected 0 to 1");
    refused({"--exit", "oracle", "--exit-threshold", "1"}, "oracle has neither");
    refused({"--exit", "none", "--exit-threshold", "1"}, "got none");
    refused({"--exit", "none", "--exit-trajectory", folder / "t"}, "--exit none exits nowhere");
    refused({"--exit", "margin", "--exit-agreement", "0.9"}, "--calib FILE");
    refused({"--exit", "margin", "--exit-agreement", "1.1"}, "--exit-agreement");
    refused({"--exit", "fixed", "--exit-loop", "1", "--exit-agreement", "0.9", "--calib", folder / "text"},
            "for probability, margin, entropy and gate");
    refused({"--exit", "margin", "--exit-threshold", "0.1", "--exit-agreement", "0.9", "--calib",
             folder / "text"},
            "both set the thresholds");
    refused({"--exit", "oracle", "--kv-policy", "h2o", "--kv-budget", "0.5"}, "leave out --kv-policy");
    refused({"--exit", "oracle", "--engine", "torch"}, "leave out --engine");
    expect_error(refold({"eval", "ppl", kFlat, "--text", folder / "text", "--exit", "oracle"}), 2,
                 {"no loops to exit from"});
    expect_error(refold({"eval", "tasks", model, "--tasks", "piqa", "--exit", "oracle"}), 2,
                 {"unknown exit rule 'oracle'"});
}

// Tasks need a tokenizer that knows their text.
class ExitTasks : public testing::Test {
protected:
    ExitTasks() {
        const std::string source = folder / "source";
        fs::create_directory(source);
        for (const char* part : {"hf/llama_gqa", "tokenizers/bpe_llama3"})
            for (const auto& entry : fs::directory_iterator(fs::path(kFixtures) / part))
                fs::copy_file(entry.path(), fs::path(source) / entry.path().filename(),
                              fs::copy_options::skip_existing);
        model = looped(source, folder);
    }
    json tasks(const std::string& names, std::vector<std::string> more) const {
        std::vector<std::string> words = {
            "eval",  "tasks", model, "--tasks", names, "--data", kFixtures + "/tasks",
            "--f32", "-t",    "1",   "--limit", "5"};
        words.insert(words.end(), more.begin(), more.end());
        return refold_json(words);
    }

    TempFolder folder;
    std::string model;
};

TEST_F(ExitTasks, TheLastLoopIsTheFullModel) {
    const json plain = tasks("piqa,hotpotqa", {});
    for (const std::string kv : {"catch-up", "propagate", "share"}) {
        const json last = tasks("piqa,hotpotqa", {"--exit", "fixed", "--exit-loop", "2", "--exit-kv", kv});
        for (const char* task : {"piqa", "hotpotqa"}) {
            for (const auto& [metric, value] : plain["results"][task].items()) {
                const json& found = last["results"][task][metric];
                if (value.is_number_float()) {
                    EXPECT_NEAR(found.get<double>(), value.get<double>(), 1e-5) << metric;
                } else {
                    EXPECT_EQ(found, value) << metric;
                }
            }
        }
        EXPECT_EQ(last["exit"]["agreement"], 1);
        EXPECT_EQ(last["exit"]["exits"][0], 0);
        EXPECT_GT(last["exit"]["exits"][1], 10);
        const json& by_task = last["exit"]["tasks"];
        EXPECT_EQ(by_task["piqa"]["exits"][1].get<int>() + by_task["hotpotqa"]["exits"][1].get<int>(),
                  last["exit"]["exits"][1].get<int>());
    }
}

TEST_F(ExitTasks, ExitsAreCounted) {
    for (const std::string kv : {"catch-up", "propagate", "share"}) {
        const json e = tasks("piqa", {"--exit", "fixed", "--exit-loop", "1", "--exit-kv", kv})["exit"];
        EXPECT_EQ(e["mean_loops"], 1);
        EXPECT_LT(e["agreement"], 1);
        EXPECT_EQ(e["tasks"]["piqa"]["exits"], e["exits"]);
    }
    const json e = tasks("piqa", {"--exit", "margin", "--exit-agreement", "0.7", "--calib",
                                  kFixtures + "/tasks/piqa/valid.jsonl", "--calib-tokens", "512"})["exit"];
    EXPECT_GE(e["calibration"]["agreement"], 0.7);
    EXPECT_EQ(e["calibration"]["thresholds"], e["thresholds"]);
}

}  // namespace
}  // namespace refold
