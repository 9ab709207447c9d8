// Reading back results of the verbs and of lm-evaluation-harness.
#include "report/results.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error_of.h"
#include "report/shared_model.h"

namespace refold {
namespace {

RunResult parse(const std::string& text) { return parse_run(text, "folder/run.json"); }

TEST(Results, Perplexity) {
    const RunResult r =
        parse(R"({"perplexity": 17.5, "standard_error": 0.25, "tokens_scored": 4092, "windows": 4,
        "context": 1024, "stride": 512, "protocol": "windows", "kv_policy": "none", "kv_budget": 1,
        "provenance": {"model": {"path": "/x/small.gguf", "sha256": "abc"}, "data": {"path": "/y/wiki.txt"},
                       "cpu": "A processor", "threads": 2, "command": "refold eval ppl small.gguf"}})");
    ASSERT_EQ(r.variant.perplexities.size(), 1U);
    const PerplexityFigure& p = r.variant.perplexities[0];
    EXPECT_EQ(p.value, 17.5);
    EXPECT_EQ(p.standard_error, 0.25);
    EXPECT_EQ(p.tokens_scored, 4092);
    EXPECT_EQ(p.protocol,
              "protocol windows: text wiki.txt, 1024 tokens of context, every 512 tokens, 4 windows");
    EXPECT_EQ(r.variant.name, "small");
    EXPECT_EQ(r.variant.file, "small.gguf");
    EXPECT_EQ(r.variant.hashes, (FileHashes{{"small.gguf", "abc"}}));
    EXPECT_EQ(r.machine.cpu, "A processor");
    EXPECT_EQ(r.machine.threads, 2);
    EXPECT_EQ(r.commands, std::vector<std::string>{"refold eval ppl small.gguf"});
}

// The format before results had a provenance. null stands for infinity.
TEST(Results, PerplexityAlone) {
    const RunResult r = parse(R"({"perplexity": null, "standard_error": null, "tokens_scored": 10})");
    EXPECT_TRUE(std::isinf(r.variant.perplexities.at(0).value));
    EXPECT_FALSE(r.variant.perplexities[0].standard_error);
    EXPECT_EQ(r.variant.name, "");
    const RunResult words = parse(
        R"({"word_perplexity": 20.5, "byte_perplexity": 1.5, "bits_per_byte": 0.6, "tokens_scored": 10, "protocol": "lm-eval"})");
    ASSERT_EQ(words.variant.perplexities.size(), 3U);
    EXPECT_EQ(words.variant.perplexities[0].metric, "word perplexity");
    EXPECT_EQ(words.variant.perplexities[2].value, 0.6);
}

TEST(Results, SizeOfABaseline) {
    const RunResult r = parse(R"({"model": "a.gguf", "output": "b.gguf", "before": {"parameters": 100},
      "after": {"parameters": 70}, "steps": [{"method": "seq", "lines": [],
      "details": {"equal_size": {"ratio": 0.3, "parameters": 75, "reached": 70, "difference": -5}}}]})");
    EXPECT_EQ(r.variant.beyond_equal_size, -5);
    Comparison comparison;
    comparison.variants = {r.before.at(0), r.variant};
    EXPECT_NE(to_table(comparison).find("beyond equal size"), std::string::npos);
    EXPECT_NE(to_table(comparison).find("-5"), std::string::npos);
    EXPECT_EQ(parse(to_json(comparison)).variant.beyond_equal_size, -5);
}

TEST(Results, TasksAsTheHarnessPrintsThem) {
    const RunResult r = parse(R"({
      "results": {
        "hellaswag": {"alias": "hellaswag", "acc,none": 0.35, "acc_stderr,none": 0.0047, "acc_norm,none": 0.43,
                      "acc_norm_stderr,none": "N/A", "sample_len": 100},
        "gsm8k": {"exact_match,strict-match": 0.1, "exact_match_stderr,strict-match": 0.01},
        "wikitext": {"word_perplexity,none": 20.5}},
      "n-shot": {"hellaswag": 5, "gsm8k": 1}, "n-samples": {"hellaswag": {"original": 10042, "effective": 100}},
      "higher_is_better": {"hellaswag": {"acc": true}}, "model_name": "HuggingFaceTB/SmolLM2-135M"})");
    ASSERT_EQ(r.variant.tasks.size(), 4U);
    const auto find = [&](const std::string& task, const std::string& metric) -> const TaskFigure& {
        for (const auto& figure : r.variant.tasks) {
            if (figure.task == task && figure.metric == metric) return figure;
        }
        ADD_FAILURE() << task << " " << metric;
        return r.variant.tasks[0];
    };
    EXPECT_EQ(find("hellaswag", "acc").value, 0.35);
    EXPECT_EQ(find("hellaswag", "acc").standard_error, 0.0047);
    EXPECT_EQ(find("hellaswag", "acc").protocol, "5 shots, 100 of 10042 items");
    EXPECT_TRUE(find("hellaswag", "acc").higher_is_better && find("hellaswag", "acc").fraction());
    EXPECT_FALSE(find("hellaswag", "acc_norm").standard_error);
    EXPECT_EQ(find("gsm8k", "exact_match, strict-match").standard_error, 0.01);
    EXPECT_EQ(find("gsm8k", "exact_match, strict-match").protocol, "1 shot");
    EXPECT_FALSE(find("wikitext", "word_perplexity").higher_is_better);
    EXPECT_FALSE(find("wikitext", "word_perplexity").fraction());
    EXPECT_EQ(r.variant.name, "SmolLM2-135M");
}

TEST(Results, TasksNameTheirModelInTheirSettings) {
    const RunResult r = parse(R"({"results": {"piqa": {"acc,none": 0.5}},
        "config": {"model": "runs/small.gguf", "model_sha256": "abc", "threads": 2}})");
    EXPECT_EQ(r.variant.name, "small");
    EXPECT_EQ(r.variant.hashes, (FileHashes{{"small.gguf", "abc"}}));
    EXPECT_EQ(r.machine.threads, 2);
    const RunResult folder =
        parse(R"({"results": {}, "config": {"model": "runs/hf", "model_sha256": "abc"}})");
    EXPECT_TRUE(folder.variant.hashes.empty());
}

TEST(Results, Bench) {
    const RunResult r = parse(R"({"model": "/x/small.gguf", "cpu": "c", "threads": 4,
        "baseline": {"engine": "refold", "model": "/x/dense.gguf"},
        "prefill": {"tokens_per_s": 500.5, "baseline_tokens_per_s": 450.25, "ratio": 1.11},
        "decode": {"tokens_per_s": 200.5, "baseline_tokens_per_s": null, "ratio": null},
        "weight_bytes_resident": 1000, "rss_bytes": 2000})");
    EXPECT_EQ(r.variant.prefill->tokens_per_s, 500.5);
    EXPECT_EQ(r.variant.prefill->ratio, 1.11);
    EXPECT_EQ(r.variant.prefill->baseline, "refold on dense.gguf");
    const RunResult other = parse(R"({"model": "/x/small.gguf",
        "baseline": {"engine": "llama.cpp", "model": "/x/q3_k_m.gguf"},
        "prefill": {"tokens_per_s": 500.5}, "decode": {"tokens_per_s": 200.5}})");
    EXPECT_EQ(other.variant.prefill->baseline, "stock llama.cpp on q3_k_m.gguf");
    EXPECT_FALSE(r.variant.decode->baseline_tokens_per_s);
    EXPECT_EQ(r.variant.resident_weight_bytes, 1000U);
    EXPECT_EQ(r.variant.resident_set_bytes, 2000U);
    EXPECT_EQ(r.variant.path, "/x/small.gguf");
    EXPECT_EQ(r.machine.threads, 4);
}

TEST(Results, ComparisonOfTwoModels) {
    const RunResult r = parse(R"({
        "a": {"perplexity": 17.0, "tokens_scored": 4092, "windows": 4, "provenance": {"model": {"path": "/x/dense.gguf"}}},
        "b": {"perplexity": 17.5, "standard_error": 0.25, "tokens_scored": 4092, "windows": 4,
              "provenance": {"model": {"path": "/x/small.gguf"}, "data": {"path": "/y/wiki.txt"}}},
        "protocol": "windows", "context": 1024, "stride": 1024, "logits": {"kl_divergence": 0.03}})");
    EXPECT_EQ(r.variant.name, "small");
    ASSERT_EQ(r.variant.perplexities.size(), 2U);
    EXPECT_EQ(r.variant.perplexities[0].value, 17.5);
    EXPECT_EQ(r.variant.perplexities[1].metric, "KL divergence from dense");
    EXPECT_EQ(r.variant.perplexities[1].value, 0.03);
    // As eval ppl says it, so that both stand in one row.
    EXPECT_EQ(r.variant.perplexities[0].protocol,
              "protocol windows: text wiki.txt, 1024 tokens of context, 4 windows");
    // Of results, not of models.
    EXPECT_THAT(
        error_of([] { parse(R"({"a": {"file": "x.json"}, "b": {"file": "y.json"}, "differences": []})"); }),
        testing::HasSubstr("no result of refold"));
}

TEST(Results, GeneratedText) {
    const RunResult r = parse(
        R"({"model": "/x/small.gguf", "prompt": "Why", "text": " not?", "tokens": [1], "generated_tokens": 1})");
    EXPECT_EQ(r.variant.file, "small.gguf");
    EXPECT_EQ(r.variant.prompt, "Why");
    EXPECT_EQ(r.variant.generated, " not?");
}

TEST(Results, Compression) {
    const RunResult r =
        parse(R"({"model": "/x/dense.gguf", "output": "/x/small.gguf", "recipe": "steps: []\n",
        "before": {"parameters": 100, "bytes": 200, "kv_bytes_per_token": 8},
        "after": {"parameters": 60, "bytes": 120, "kv_bytes_per_token": 8}, "file_bytes": 130,
        "steps": [{"method": "direct_share", "seconds": 1.5, "lines": ["shares 3 heads"]}]})");
    ASSERT_EQ(r.before.size(), 1U);
    EXPECT_EQ(r.before[0].name, "dense");
    EXPECT_EQ(r.before[0].parameters, 100U);
    EXPECT_EQ(r.variant.name, "small");
    EXPECT_EQ(r.variant.parameters, 60U);
    EXPECT_EQ(r.variant.file_bytes, 130U);
    EXPECT_EQ(r.variant.recipe, "steps: []\n");
    ASSERT_EQ(r.variant.steps.size(), 1U);
    EXPECT_NE(r.variant.steps[0].find("shares 3 heads"), std::string::npos);
    EXPECT_EQ(parse(R"({"model": "m", "output": null, "before": {}, "after": {}})").variant.name, "run");
}

// A comparison whose value at `place` (JSON pointer) is one that to_json() would not write.
std::string changed_report(const std::string& place, const char* value) {
    Comparison c;
    Variant v;
    v.name = "small";
    v.perplexities = {{17.5, 0.25, 100, "windows"}};
    v.tasks = {{"piqa", "acc", 0.5, 0.1, "", true}};
    v.decode = SpeedFigure{10, 9, 1.1};
    v.topology = topology_map(shared_model());
    v.reconstruction = Reconstruction{{Slot::attn_q}, {{0.5}, {0.25}, {0}}, 0.5, 3, 2, 0};
    v.training = {{"", {{"loss", {1, 2}, {4.5, 4}}}}};
    c.variants = {v};
    auto report = nlohmann::json::parse(to_json(c));
    EXPECT_NO_THROW(parse(report.dump()));
    report[nlohmann::json::json_pointer(place)] = nlohmann::json::parse(value);
    return report.dump();
}

TEST(Results, RefuseReportsThatLie) {
    constexpr std::array kLies = {
        std::array{"/report_layout", "1", "layout 1"},
        std::array{"/variants", "[]", "variants"},
        std::array{"/variants", "{}", "variants"},
        std::array{"/variants/0", "3", "variants[0]"},
        std::array{"/variants/0/name", "null", "variants[0].name"},
        std::array{"/machine/threads", "-1", "machine.threads"},
        std::array{"/variants/0/parameters", "-5", "variants[0].parameters"},
        std::array{"/variants/0/perplexities/0/perplexity", "\"good\"",
                   "variants[0].perplexities[0].perplexity"},
        std::array{"/variants/0/tasks/0/higher_is_better", "null", "tasks[0].higher_is_better"},
        std::array{"/variants/0/decode/ratio", "[]", "decode.ratio"},
        std::array{"/variants/0/steps", "[1]", "steps[0]"},
        std::array{"/variants/0/training/0/curves/loss/values", "[1]", "curves.loss.values"},
        std::array{"/variants/0/topology/slots/0", "\"attn.z\"", "topology.slots[0]"},
        std::array{"/variants/0/topology/slots/1", "\"attn.q\"", "topology.slots[1]"},
        std::array{"/variants/0/topology/cells/0", "[4]", "topology.cells[0]"},
        std::array{"/variants/0/topology/cells/0/0", "100000", "topology.cells[0][0]"},
        std::array{"/variants/0/topology/borrowed/0/head", "4", "topology.borrowed[0].head"},
        std::array{"/variants/0/topology/borrowed/0/from_layer", "3", "borrowed[0].from_layer"},
        std::array{"/variants/0/topology/attention_sources", R"([{"layer": 1, "probabilities": 1}])",
                   "attention_sources[0].probabilities"},
        std::array{"/variants/0/topology/factors", R"([{"layer": 0, "slot": "output", "instead": true}])",
                   "factors[0].slot"},
        std::array{"/variants/0/reconstruction/relative_errors/1", "[0.5, 0.5]", "relative_errors[1]"},
        std::array{"/variants/0/reconstruction/different", "4", "reconstruction.different"},
        std::array{"/variants/0/svd_errors", R"([{"layer": 0, "slot": "attn.q", "rank": 3}])",
                   "svd_errors[0].relative_error"},
        std::array{"/variants/0/analyses", "[\"<q>\"]", "analyses[0]"}};
    for (const auto& [place, value, named] : kLies) {
        const std::string message = error_of([&] { parse(changed_report(place, value)); }, ErrorCode::input);
        EXPECT_NE(message.find("folder/run.json"), std::string::npos) << message;
        EXPECT_NE(message.find(named), std::string::npos) << place << ": " << message;
    }
    // 262,144 heads are more than any model has, and would need far more memory than the file.
    std::string rows = "[512,512,512,512,1,1,1]";
    for (int i = 0; i < 128; ++i) rows += ",[512,512,512,512,1,1,1]";
    EXPECT_NE(
        error_of([&] { parse(changed_report("/variants/0/topology/cells", ("[" + rows + "]").c_str())); },
                 ErrorCode::input)
            .find("fewer heads"),
        std::string::npos);
}

TEST(Results, SvdsThatStepsHaveRecorded) {
    const RunResult r = parse(R"({"model": "m", "output": "small.gguf", "before": {}, "after": {}, "steps": [
        {"method": "tensorllm", "details": {"stacks": [{"svd_rank": 3, "svd": [
            {"layers": [1, 4], "slot": "attn.q", "relative_error": 0.25},
            {"layers": [1], "slot": "attn.z", "relative_error": 0.5}, 7]}, {"svd": [{}]}, {}]}},
        {"method": "laser", "options": {"svd": "exact"}, "details": {"matrices": [
            {"layers": [2], "slot": "ffn.down", "rank": 5, "relative_error": 0.125}]}},
        {"method": "laser", "options": {"svd": "randomized"}, "details": {"matrices": [
            {"layers": [3], "slot": "ffn.down", "rank": 5, "relative_error": 0.125}]}},
        {"method": "llm_pruner", "details": {"stacks": 3, "matrices": {}}}]})");
    std::vector<std::string> told;
    for (const SvdError& svd : r.variant.svd_errors)
        told.push_back(fmt::format("{} {} {} {}", svd.layer, slot_name(svd.slot), svd.rank, svd.error));
    EXPECT_EQ(told, (std::vector<std::string>{"1 attn.q 3 0.25", "4 attn.q 3 0.25", "2 ffn.down 5 0.125"}));
}

TEST(Results, RefusesWhatIsNone) {
    for (const char* text : {"{", "", "no JSON"}) {
        const std::string message = error_of([&] { parse(text); }, ErrorCode::input);
        EXPECT_NE(message.find("folder/run.json"), std::string::npos) << message;
        EXPECT_NE(message.find("not JSON"), std::string::npos) << message;
    }
    for (const char* text :
         {"{}", "[]", "3", "null", R"({"perplexity": 3})", R"({"layers": 2, "weights": 3})"}) {
        const std::string message = error_of([&] { parse(text); }, ErrorCode::input);
        EXPECT_NE(message.find("no result of refold"), std::string::npos) << message;
    }
}

// Copying JSON this deep would overflow the stack.
TEST(Results, RefuseDeepNesting) {
    const std::string deep =
        R"({"perplexity": 3, "provenance": )" + std::string(2000000, '[') + std::string(2000000, ']') + "}";
    EXPECT_NE(error_of([&] { parse(deep.c_str()); }, ErrorCode::input).find("not JSON"), std::string::npos);
}

// Numbers that no model has must do no harm.
TEST(Results, SurviveStrangeNumbers) {
    const RunResult r = parse(R"({"model": "m", "threads": 1e300, "prefill": {"tokens_per_s": -1e308},
        "decode": {"tokens_per_s": "fast"}, "rss_bytes": -5, "weight_bytes_resident": 1e300})");
    EXPECT_FALSE(r.variant.decode);
    EXPECT_FALSE(r.variant.resident_set_bytes);
    EXPECT_FALSE(r.variant.resident_weight_bytes);
    Comparison c;
    c.variants = {r.variant, r.variant};
    EXPECT_FALSE(to_html(c).empty());
    EXPECT_FALSE(to_table(c).empty());
}

}  // namespace
}  // namespace refold
