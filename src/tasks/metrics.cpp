#include "tasks/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/text.h"
#include "tasks/bleu.h"
#include "tasks/bootstrap.h"
#include "tasks/meteor.h"
#include "tasks/python_text.h"

namespace refold {
namespace {

using Sums = std::span<const double>;

double mean_of(Sums sums, double items) { return sums[0] / items; }
double perplexity_of(Sums sums, double items) { return std::exp(-sums[0] / items); }
double bleu_of(Sums sums, double) { return bleu(sums); }

// Sums of a confusion matrix of two classes: true positive, false positive, false negative, true negative.
double f1_of(Sums s, double) {
    const double all = 2 * s[0] + s[1] + s[2];
    return all > 0 ? 2 * s[0] / all : 0;
}
double matthews_of(Sums s, double) {
    const double root = std::sqrt((s[0] + s[1]) * (s[0] + s[2]) * (s[3] + s[1]) * (s[3] + s[2]));
    return root > 0 ? (s[0] * s[3] - s[1] * s[2]) / root : 0;
}

enum Outputs : unsigned { choice = 1, target = 2, text = 4, mask = 8, label = 16 };
constexpr unsigned kChoices = choice | mask | label;

struct Definition {
    const char* name;
    unsigned outputs;
    bool higher;
    size_t width;
    double (*aggregate)(Sums, double);
    int draws;  // of the bootstrap; 0: standard error of a mean
};

constexpr int kDraws = 100'000, kBleuDraws = 100;
constexpr Definition kDefinitions[] = {
    {"acc", kChoices | target, true, 1, mean_of, 0},
    {"acc_norm", kChoices, true, 1, mean_of, 0},
    {"acc_bytes", kChoices, true, 1, mean_of, 0},
    {"acc_ppl", kChoices, true, 1, mean_of, 0},
    {"exact_match", choice | text, true, 1, mean_of, 0},
    {"em", text, true, 1, mean_of, 0},
    {"f1", text, true, 1, mean_of, 0},
    {"f1", choice, true, 4, f1_of, kDraws},
    {"mcc", choice, true, 4, matthews_of, kDraws},
    {"string_match_all", text, true, 1, mean_of, 0},
    {"laser_acc", text, true, 1, mean_of, 0},
    {"meteor", text, true, 1, mean_of, 0},
    {"nll", text | mask | label, false, 1, mean_of, 0},
    {"bleu", text, true, std::tuple_size_v<BleuCounts>, bleu_of, kBleuDraws},
    {"perplexity", target | mask | label, false, 1, perplexity_of, kDraws},
    {"label_probability", mask | label, true, 1, mean_of, 0},
    {"log_prob", mask | label, true, 1, mean_of, 0},
};

unsigned bit_of(TaskOutput output) {
    switch (output) {
        case TaskOutput::multiple_choice: return choice;
        case TaskOutput::loglikelihood: return target;
        case TaskOutput::generate_until: return text;
        case TaskOutput::masked_lm: return mask;
        case TaskOutput::label_probability: return label;
    }
    return 0;
}

const Definition* find_definition(const TaskSpec& spec, const std::string& metric) {
    for (const Definition& d : kDefinitions)
        if (metric == d.name && (d.outputs & bit_of(spec.output)) != 0) return &d;
    return nullptr;
}

const Definition& definition_of(const TaskSpec& spec, const std::string& metric) {
    check_metric(spec, metric);
    return *find_definition(spec, metric);
}

// Index of the choice with the largest log likelihood per unit of length. `length` of choice i.
template <typename Length>
size_t best_choice(const Answer& answer, Length length) {
    size_t best = 0;
    double best_value = -INFINITY;
    for (size_t i = 0; i < answer.choices.size(); ++i) {
        const double value = answer.choices[i].log_likelihood / static_cast<double>(length(i));
        if (i == 0 || value > best_value) {
            best = i;
            best_value = value;
        }
    }
    return best;
}

bool is_right(const TaskItem& item, size_t chosen) {
    return std::find(item.gold.begin(), item.gold.end(), static_cast<int64_t>(chosen)) != item.gold.end();
}

double best_of(const std::vector<std::string>& references, const std::string& answer,
               double (*score)(std::string_view, std::string_view)) {
    double best = 0;
    for (const std::string& reference : references) best = std::max(best, score(answer, reference));
    return best;
}

double text_value(const std::string& metric, const TaskItem& item, const Answer& given) {
    const std::string& answer = given.text;
    if (metric == "nll") return -given.choices.at(0).log_likelihood / static_cast<double>(given.scored.at(0));
    if (metric == "meteor") return best_of(item.references, answer, meteor);
    if (metric == "laser_acc") {
        const std::string text = lower(given.filled ? answer : item.prompts[0] + answer);
        return text.find(lower(strip(item.references[0]))) != std::string::npos ? 1 : 0;
    }
    if (metric == "exact_match")
        return best_of(item.references, answer,
                       [](std::string_view a, std::string_view b) { return a == b ? 1.0 : 0.0; });
    if (metric == "em")
        return best_of(item.references, answer, [](std::string_view a, std::string_view b) {
            return normalize_answer(a) == normalize_answer(b) ? 1.0 : 0.0;
        });
    if (metric == "f1") return best_of(item.references, answer, word_f1);
    // string_match_all
    const std::string low = lower(answer);
    const auto found = std::count_if(item.references.begin(), item.references.end(),
                                     [&](const auto& r) { return low.find(lower(r)) != std::string::npos; });
    return static_cast<double>(found) / static_cast<double>(item.references.size());
}

}  // namespace

void check_metric(const TaskSpec& spec, const std::string& metric) {
    if (find_definition(spec, metric) != nullptr) return;
    std::vector<std::string> known;
    for (const Definition& d : kDefinitions)
        if ((d.outputs & bit_of(spec.output)) != 0) known.emplace_back(d.name);
    fail(ErrorCode::usage, "tasks", "{}: no metric '{}' for this kind of task; {}", spec.name, metric,
         suggestion(metric, known));
}

bool higher_is_better(const std::string& metric) {
    return std::none_of(std::begin(kDefinitions), std::end(kDefinitions),
                        [&](const Definition& d) { return metric == d.name && !d.higher; });
}

bool scores_references(const TaskSpec& spec) {
    return spec.output == TaskOutput::generate_until &&
           std::find(spec.metrics.begin(), spec.metrics.end(), "nll") != spec.metrics.end();
}

std::vector<double> item_values(const TaskSpec& spec, const std::string& metric, const TaskItem& item,
                                const Answer& answer) {
    const Definition& definition = definition_of(spec, metric);
    if (spec.output == TaskOutput::generate_until) {
        if (definition.aggregate != bleu_of) return {text_value(metric, item, answer)};
        const BleuCounts counts = bleu_counts(answer.text, item.references);
        return {counts.begin(), counts.end()};
    }
    if (spec.output == TaskOutput::loglikelihood) {
        const Likelihood& only = answer.choices.front();
        return {metric == "acc" ? (only.greedy ? 1.0 : 0.0) : only.log_likelihood};
    }
    const size_t chosen = best_choice(answer, [&](size_t i) -> size_t {
        const std::string& c = item.choices[item.choices.size() == 1 ? 0 : i];
        if (metric == "acc_norm") return code_points(c);
        if (metric == "acc_bytes") return c.size();
        if (metric == "acc_ppl") return static_cast<size_t>(answer.tokens.at(i));
        return 1;
    });
    const auto right = static_cast<size_t>(item.gold.front());
    if (definition.width == 4) {
        const bool predicted = chosen == 1, expected = right == 1;
        return {predicted && expected ? 1.0 : 0.0, predicted && !expected ? 1.0 : 0.0,
                !predicted && expected ? 1.0 : 0.0, !predicted && !expected ? 1.0 : 0.0};
    }
    if (metric == "exact_match") {
        return {std::any_of(item.gold.begin(), item.gold.end(),
                            [&](int64_t g) { return answer.choices[static_cast<size_t>(g)].greedy; })
                    ? 1.0
                    : 0.0};
    }
    const double likelihood = answer.choices[right].log_likelihood;
    if (metric == "perplexity" || metric == "log_prob") return {likelihood};
    if (metric == "nll") return {-likelihood};
    if (metric == "label_probability") return {std::exp(likelihood)};
    return {is_right(item, chosen) ? 1.0 : 0.0};
}

double figure(const TaskSpec& spec, const std::string& metric, std::span<const double> sums, double items) {
    return definition_of(spec, metric).aggregate(sums, items);
}

MetricResult aggregate(const TaskSpec& spec, const MetricValues& values, int threads) {
    const Definition& definition = definition_of(spec, values.metric);
    const auto n = static_cast<double>(values.items());
    std::vector<double> sums(values.width);
    for (size_t i = 0; i < values.values.size(); ++i) sums[i % values.width] += values.values[i];
    MetricResult result{definition.aggregate(sums, n), {}};
    if (values.items() < 2) return result;
    if (definition.draws > 0) {
        result.standard_error =
            bootstrap_error(values.values, values.width, definition.aggregate, definition.draws, threads);
    } else {
        double squares = 0;
        for (const double x : values.values) squares += (x - result.value) * (x - result.value);
        result.standard_error = std::sqrt(squares / (n - 1)) / std::sqrt(n);
    }
    return result;
}

std::string normalize_answer(std::string_view text) {
    std::string kept;
    for (const char c : lower(text))
        if (std::string_view("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~").find(c) == std::string_view::npos)
            kept += c;
    std::string out;
    for (const std::string_view word : split_words(kept)) {
        if (word == "a" || word == "an" || word == "the") continue;
        if (!out.empty()) out += ' ';
        out += word;
    }
    return out;
}

double word_f1(std::string_view answer, std::string_view reference) {
    const std::string a = normalize_answer(answer), b = normalize_answer(reference);
    const auto words = split_words(a), expected = split_words(b);
    // SQuAD 2: an empty answer matches only an empty reference.
    if (words.empty() || expected.empty()) return words.empty() && expected.empty() ? 1.0 : 0.0;
    std::map<std::string_view, int> left;
    for (const auto word : expected) ++left[word];
    double common = 0;
    for (const auto word : words)
        if (left[word]-- > 0) ++common;
    if (common == 0) return 0;
    const double precision = common / static_cast<double>(words.size());
    const double recall = common / static_cast<double>(expected.size());
    return 2 * precision * recall / (precision + recall);
}

}  // namespace refold
