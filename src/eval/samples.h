// Results per item, as JSONL in lm-evaluation-harness's form: "doc_id", "doc_hash" and the item's metrics,
// each a number (acc, acc_norm, ...) or, for perplexities, [log likelihood, units].
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "eval/perplexity.h"

namespace refold {

struct SampleValue {
    double value = 0;
    std::optional<double> weight;  // units, if `value` is a log likelihood
};

struct Sample {
    std::string hash;  // "doc_hash"; empty: none
    size_t line = 0;
    std::map<std::string, SampleValue> metrics;
};

struct SampleGroup {
    std::string task, filter;
    auto operator<=>(const SampleGroup&) const = default;
};

// By task (empty if the file names none) and filter (default "none"), then by doc_id.
using Samples = std::map<SampleGroup, std::map<int64_t, Sample>>;

// `name` is the file, for errors. Metrics are those listed in "metrics", else every field that looks like
// one. Throws Error(input) naming the line for a line without JSON object, doc_id or metric, a repeated
// doc_id, or a metric that is neither a finite number nor [log likelihood, units > 0].
Samples parse_samples(const std::string& text, const std::string& name);

// "perplexity" per token; for lm_eval also "word_perplexity", "byte_perplexity" and "bits_per_byte".
std::string perplexity_samples(const PerplexityPlan& plan, const PerplexityResult& result);

}  // namespace refold
