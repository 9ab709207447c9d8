// Metrics of answers, per item and over all items, by lm-evaluation-harness's definitions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/item.h"
#include "tasks/loglikelihood.h"

namespace refold {

// A model's answer to one item.
struct Answer {
    std::vector<Likelihood> choices;  // one per request; generate_until: of the first reference, if scored
    std::string text{};               // generate_until
    std::vector<int64_t> scored{};    // tokens of each choice; one more where they were masked at once
    std::vector<int64_t> tokens{};    // of each choice with its context
    bool filled = false;              // the text fills masks
};

// Values of one metric, [items, width]; the metric's figure needs only their sums.
struct MetricValues {
    std::string metric;
    size_t width = 1;
    std::vector<double> values;

    size_t items() const { return values.size() / width; }
};

struct MetricResult {
    double value = 0;
    std::optional<double> standard_error;  // none for a single item
};

// Throws Error(usage) with similar names when `metric` is unknown or not defined for the task's output.
void check_metric(const TaskSpec& spec, const std::string& metric);
bool higher_is_better(const std::string& metric);
// Whether one of the metrics of generated text needs the likelihood of the first reference.
bool scores_references(const TaskSpec& spec);

// The values of one item, as many as the metric's width:
// - acc, acc_norm, acc_bytes: 1 when the choice with the largest log likelihood (per code point, per byte of
//   the choice; of equals the first) is right. For loglikelihood, acc is 1 for a greedy match.
// - acc_ppl (OpenCompass): 1 when the choice with the largest log likelihood per token of its whole text, BOS
//   and context included, is right; for choices that are whole texts.
// - exact_match: 1 when the right choice is greedy, or generated text equals a reference.
// - em, f1: equality, and F1 of words, of generated text and the best reference after SQuAD's normalization
//   (lower case, without punctuation and articles).
// - string_match_all (RULER): part of the references that occur in the text, ignoring case.
// - laser_acc (LASER): 1 when the first reference occurs in the text, ignoring case; in generated text with
//   its prompt.
// - meteor (Banerjee and Lavie 2005), of exact matches: see meteor.h.
// - nll (LASER): negative log likelihood of the right label; of generated text's first reference, per token.
// - bleu; f1 of the positive class and mcc, over two choices.
// - perplexity: exp(-mean log likelihood) of the target, or of the right label.
// - label_probability, log_prob (LASER): of the right label.
std::vector<double> item_values(const TaskSpec& spec, const std::string& metric, const TaskItem& item,
                                const Answer& answer);

// The figure, from the sums of the items' values.
double figure(const TaskSpec& spec, const std::string& metric, std::span<const double> sums, double items);
// The figure of all items, at least one. Standard error: for means, sample standard deviation / sqrt(n); else
// bootstrap (100,000 draws; BLEU: 100).
MetricResult aggregate(const TaskSpec& spec, const MetricValues& values, int threads);

// SQuAD's normalization and the F1 of words after it.
std::string normalize_answer(std::string_view text);
double word_f1(std::string_view answer, std::string_view reference);

}  // namespace refold
