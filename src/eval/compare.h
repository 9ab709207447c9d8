// Compares two results, or two models on one text, and tests whether they differ significantly.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/samples.h"
#include "eval/significance.h"

namespace refold {

// One figure of both results.
struct Difference {
    std::string task, filter, metric;
    std::string test;   // "McNemar", "paired bootstrap", "unpaired" (normal approximation), "none"
    int64_t items = 0;  // pairs; 0: unpaired
    double a = 0, b = 0;
    std::optional<double> low, high;        // 95 % interval of b - a
    std::optional<double> p;                // two-sided, for the hypothesis of no difference
    std::optional<int64_t> only_a, only_b;  // McNemar: items that only one got right

    double difference() const { return b - a; }
};

struct Differences {
    std::vector<Difference> rows;
    std::vector<std::string> notes;  // items and figures that were left out
};

// Pairs items by task, filter, metric and doc_id. A task without a name stands for the other's only task.
// Accuracies (all values 0 or 1) get McNemar's exact test; other metrics, and all intervals, come from a
// paired bootstrap over items. Throws Error(input) when a doc_id belongs to different documents, or when
// nothing can be paired.
Differences compare_samples(const Samples& a, const Samples& b, const BootstrapOptions& options);

// A result of `eval ppl --json` or `eval tasks --json`, of lm-evaluation-harness (results_*.json, with the
// samples_*.jsonl beside it), or samples alone (.jsonl).
struct ResultFile {
    std::string path;
    nlohmann::ordered_json summary;  // null for samples alone
    Samples samples;                 // may be empty
};
// Throws Error(io), or Error(input) naming file and line.
ResultFile read_result(const std::string& path);

// Paired if both have samples. Throws Error(input) with the reason when protocols, parameters or data differ,
// or when the results have no figure in common.
Differences compare_results(const ResultFile& a, const ResultFile& b, const BootstrapOptions& options);

// Difference of the two models' next-token distributions, over all scored tokens.
struct LogitAgreement {
    double kl_divergence = 0;   // of b from a, nats per token
    double top1_agreement = 0;  // part of tokens where both have the same likeliest token
    std::optional<BootstrapInterval> kl_interval, top1_interval;  // over items; none for one item
};

struct ModelComparison {
    PerplexityResult a, b;
    Differences differences;
    std::optional<LogitAgreement> logits;  // if both have the same tokens
};

// Runs both, window by window; those of group() share the windows, and all get the result, which is the same
// for any number of processes. Throws Error(input) when the plans are of different tokens, unless they are
// documents (lm_eval), which may be compared across vocabularies.
ModelComparison compare_models(SingleSequence& sequence_a, const PerplexityPlan& plan_a,
                               SingleSequence& sequence_b, const PerplexityPlan& plan_b,
                               const BootstrapOptions& options);

}  // namespace refold
