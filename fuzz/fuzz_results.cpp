// Fuzzes the results that `refold report` reads: for any text, parse_run() and parse_training() return a
// result that every format of report can show, or throw refold::Error - no crash, no sanitizer report, no
// other exception, and no text of the input becomes markup.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "report/collect.h"
#include "report/results.h"
#include "report/training.h"
#include "target.h"

namespace {

// Shortened output of the verbs.
const std::vector<std::string> kSeeds = {
    R"({"perplexity": 17.5, "standard_error": 0.25, "tokens_scored": 4092, "windows": 4, "context": 1024, "stride": 512,
"protocol": "windows", "f32": true, "kv_policy": "h2o", "kv_budget": 0.5, "word_perplexity": 20.5, "bits_per_byte": 0.5,
"provenance": {"refold": "0.1.0", "cpu": "c", "threads": 2, "command": "refold eval ppl small.gguf", "engine": {"f32": false},
"model": {"name": "small", "path": "/x/small.gguf", "sha256": "abc", "files": [{"file": "small.gguf", "sha256": "abc"}],
"compression": {"recipe": "steps: []"}}, "data": {"path": "/y/wiki.txt", "sha256": "def"}}})",
    R"({"results": {"hellaswag": {"alias": "hellaswag", "acc,none": 0.35, "acc_stderr,none": 0.0047, "acc_norm,none": 0.43},
"gsm8k": {"exact_match,strict-match": 0.1, "exact_match_stderr,strict-match": 0.01}, "lambada": {"perplexity,none": 20.5}},
"n-shot": {"hellaswag": 5}, "n-samples": {"hellaswag": {"original": 10042, "effective": 100}},
"higher_is_better": {"hellaswag": {"acc": true}}, "model_name": "org/name", "config": {"model_args": "pretrained=x,dtype=y"}})",
    R"({"model": "/x/small.gguf", "cpu": "c", "threads": 4, "baseline": {"engine": "refold", "model": "/x/dense.gguf"},
"prefill": {"tokens_per_s": 500.5, "baseline_tokens_per_s": 450.25, "ratio": 1.11},
"decode": {"tokens_per_s": 200.5, "baseline_tokens_per_s": null, "ratio": null}, "weight_bytes_resident": 1000, "rss_bytes": 2000})",
    R"({"model": "/x/dense.gguf", "output": "/x/small.gguf", "recipe": "steps: []", "before": {"parameters": 100, "bytes": 200,
"kv_bytes_per_token": 8}, "after": {"parameters": 60, "bytes": 120, "kv_bytes_per_token": 8}, "file_bytes": 130,
"steps": [{"method": "direct_share", "seconds": 1.5, "lines": ["shares 3 heads"]},
{"method": "trawl", "details": {"stacks": [{"svd_rank": 3, "svd": [{"layers": [0], "slot": "attn.q", "relative_error": 0.5}]}]}}]})",
    R"({"model": "m", "layers": 2, "text": {"name": "t.txt", "tokens": 96},
"softmax": {"average": 0.5, "maximum": 0.5, "layer_cosine": [[1, 0.5], [0.5, 1]]},
"heads": {"heads": ["0.0", "1.0"], "head_cosine": [[1, 0.1], [0.1, 1]], "best_matches": [
{"layer": 0, "head": 0, "former_layer": null, "former_head": null, "cosine": null},
{"layer": 1, "head": 0, "former_layer": 0, "former_head": 0, "cosine": 0.4}]},
"modules": {"layers": [{"layer": 0, "attention": 0.9, "ffn": 0.8, "whole_layer": 0.7, "attention_standard_deviation": 0.01},
{"layer": 1, "attention": null, "ffn": 0.6, "whole_layer": 0.5}]},
"weights": {"attention_module_cosine": [[1, -0.01], [-0.01, 1]], "best_matches": []},
"spectra": {"matrices": [{"layers": [0], "slot": "attn.q", "rows": 4, "columns": 8, "rank_for_90_percent": 3,
"singular_values": [4, 2, 1, 0]}, {"layers": [1, 2], "slot": "ffn.up", "rank_for_90_percent": 1, "singular_values": [8, 1]}]}})",
    R"({"report_layout": 2, "refold_version": "0.1.0", "machine": {"cpu": "c", "threads": 2, "memory_bytes": 100},
"commands": ["refold eval ppl small.gguf"], "notes": ["a note"], "variants": [
{"name": "dense", "file": "dense.gguf", "sha256": "abc", "parameters": 100, "steps": [], "analyses": [{"layers": 2, "modules":
{"layers": [{"layer": 0, "ffn": 0.8}, {"layer": 1, "ffn": 0.6}]}}]},
{"name": "small", "recipe": "steps: []", "file": "small.gguf", "sha256": {"small.gguf": "def"}, "made_of": [{"dense.gguf": "abc"}],
"parameters": 60, "file_bytes": 130, "kv_bytes_per_token": 8, "resident_weight_bytes": 1000, "resident_set_bytes": 2000,
"perplexities": [{"metric": "perplexity", "perplexity": 17.5, "standard_error": null, "tokens_scored": 10, "protocol": "p"}],
"tasks": [{"task": "piqa", "metric": "acc", "value": 0.5, "standard_error": 0.1, "protocol": "", "higher_is_better": true}],
"prefill": null, "decode": {"tokens_per_s": 200.5, "baseline_tokens_per_s": 180, "ratio": 1.1, "baseline": "stock llama.cpp"},
"sample": {"prompt": "p", "generated": "g"}, "steps": ["shares 3 heads"],
"svd_errors": [{"layer": 0, "slot": "attn.q", "rank": 3, "relative_error": 0.5}], "training": [{"name": "step-2", "curves": {"loss": {"steps": [1, 2], "values": [4.5, null]}}}],
"topology": {"loops": 2, "slots": ["attn.q", "ffn.down"], "cells": [[4, 1], [4, 1], [0, 1]], "borrowed": [
{"layer": 1, "slot": "attn.q", "head": 2, "from_layer": 0, "from_head": 1},
{"layer": 1, "slot": "ffn.down", "head": 0, "from_layer": 0, "from_head": null}],
"factors": [{"layer": 0, "slot": "ffn.down", "instead": true, "text": "low rank 3"}],
"attention_sources": [{"layer": 2, "probabilities": 1, "keys_and_values": null}]},
"reconstruction": {"total": 0.5, "compared": 3, "different": 2, "not_comparable": 0, "slots": ["attn.q"],
"relative_errors": [[0.5], [null], [0.25]]}}]})",
    R"({"step":1,"loss":4.5,"learning_rate":0.001,"gradient_norm":2.5}
{"step":2,"loss":null,"tokens_per_s":100,"a_part":0.5}
{"step":2,"held_out_loss":3.5})"};

// Removes Markdown's code blocks, in which nothing is markup.
std::string without_code(const std::string& markdown) {
    std::string out, fence;
    std::istringstream lines(markdown);
    for (std::string line; std::getline(lines, line);) {
        const size_t ticks = std::min(line.find_first_not_of('`'), line.size());
        if (!fence.empty()) {
            if (ticks >= fence.size() && ticks == line.size()) fence.clear();
        } else if (ticks >= 3) {
            fence = line.substr(0, ticks);
        } else {
            out += line + "\n";
        }
    }
    return out;
}

constexpr std::string_view kWords[] = {
    "<q7>",    "</svg><q7 a='", "\\\"><q7>", "perplexity", "results",   "before",   "after",
    "prefill", "decode",        "layers",    "model",      "sha256",    "cosine",   "heads",
    "../..",   "\\u2028",       "acc",       "attn.k",     "variants",  "topology", "",
    "1e300",   "1099511627776", "[[]]",      "<q7>",       "\\u0000\\n"};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    const std::string text(input);
    refold::Comparison comparison;
    const bool taken = reads([&] {
        const refold::RunResult result = text.starts_with("{\"step\"")
                                             ? refold::parse_training(text, "fuzz/metrics.jsonl")
                                             : refold::parse_run(text, "fuzz");
        comparison.variants = result.before;
        comparison.variants.push_back(result.variant);
        comparison.variants.push_back(result.variant);
        comparison.machine = result.machine;
        comparison.commands = result.commands;
    });
    if (!taken) return false;
    const auto expect = [&](bool right, const char* what) {
        if (right) return;
        std::fprintf(stderr, "%s:\n%s\n", what, text.c_str());
        abort();
    };
    const std::string html = to_html(comparison);
    for (const char* markup : {"<script", "<q7", "nanh", "inf "})
        expect(html.find(markup) == std::string::npos, markup);
    expect(without_code(to_markdown(comparison)).find("<q7") == std::string::npos, "markup in Markdown");
    expect(!to_table(comparison).empty(), "nothing to show");
    // refold can read its own report.
    for (auto& variant : comparison.variants) variant.name += "m";
    refold::Runs runs;
    runs.results.push_back(refold::parse_run(to_json(comparison), "again"));
    expect(runs.results[0].before.size() + 1 == comparison.variants.size(), "models are lost");
    expect(!to_html(collect(runs, {})).empty(), "nothing to show of the report");
    return true;
}

std::vector<std::string> refold::fuzz_seeds() { return kSeeds; }
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
