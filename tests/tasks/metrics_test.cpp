// Metrics of hand-made answers. Expected values that are not obvious come from sacrebleu 2.6, scikit-learn,
// CPython and lm-evaluation-harness 0.4.13.
#include "tasks/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "tasks/bleu.h"
#include "tasks/bootstrap.h"
#include "tasks/meteor.h"
#include "tasks/python_random.h"
#include "tasks/python_text.h"

namespace refold {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

TEST(PythonRandom, DrawsWhatPythonDraws) {
    PythonRandom random(1234);
    EXPECT_EQ(random.random(), 0.9664535356921388);
    EXPECT_EQ(random.random(), 0.4407325991753527);
    EXPECT_EQ(random.random(), 0.007491470058587191);
    EXPECT_EQ(PythonRandom((1ULL << 40) + 3).random(), 0.21978710637116716);
    EXPECT_THAT(PythonRandom(1234).sample(100, 5), ElementsAre(99, 56, 14, 0, 11));
    EXPECT_THAT(PythonRandom(42).sample(10, 4), ElementsAre(1, 0, 4, 9));
    EXPECT_THAT(PythonRandom(7).sample(1000, 10), ElementsAre(331, 970, 154, 404, 666, 49, 74, 840, 548, 96));
    EXPECT_THAT(PythonRandom(5).sample(60, 6), ElementsAre(39, 16, 47, 22, 50, 44));
}

TEST(PythonText, CodePointsAndWhiteSpace) {
    EXPECT_EQ(code_points("naïve 漢字"), 8U);
    EXPECT_EQ(rstrip("a \u00a0\u3000\n"), "a");
    EXPECT_EQ(rstrip("é"), "é");
    EXPECT_EQ(strip("\u2003 a b \t"), "a b");
    EXPECT_THAT(split_words(" a\u00a0é\n\nc "), ElementsAre("a", "é", "c"));
    EXPECT_THAT(split_words(" \n"), ElementsAre());
    EXPECT_EQ(valid_utf8("z\x86irs é\xE2\x82"), "z\uFFFDirs é\uFFFD");
}

TaskSpec spec_of(TaskOutput output) {
    TaskSpec spec;
    spec.name = "test";
    spec.output = output;
    return spec;
}

TaskItem item_of(std::vector<std::string> choices, std::vector<int64_t> gold) {
    TaskItem item;
    item.choices = std::move(choices);
    item.gold = std::move(gold);
    return item;
}

double value_of(const std::string& metric, const TaskItem& item, const std::vector<double>& likelihoods,
                TaskOutput output = TaskOutput::multiple_choice) {
    Answer answer;
    for (const double l : likelihoods) answer.choices.push_back({l, l > -1});
    return item_values(spec_of(output), metric, item, answer).at(0);
}

TEST(Metrics, AccuraciesNormaliseByLength) {
    // 4 code points of 8 bytes, 2 of 2, 6 of 6.
    const TaskItem item = item_of({"éééé", "ab", "abcdef"}, {0});
    EXPECT_EQ(value_of("acc", item, {-4, -5, -9}), 1);
    EXPECT_EQ(value_of("acc", item, {-6, -5, -9}), 0);
    EXPECT_EQ(value_of("acc_norm", item, {-6, -5, -9.1}), 1);    // -1.5, -2.5, -1.52
    EXPECT_EQ(value_of("acc_norm", item, {-6, -5, -8.9}), 0);    // -1.48
    EXPECT_EQ(value_of("acc_bytes", item, {-12, -5, -9.1}), 1);  // -1.5, -2.5, -1.52
    EXPECT_EQ(value_of("acc_bytes", item, {-12, -5, -8.9}), 0);
    // The first of equals counts; several choices may be right.
    EXPECT_EQ(value_of("acc", item, {-5, -5, -9}), 1);
    EXPECT_EQ(value_of("acc", item_of({"a", "b", "c"}, {1, 2}), {-5, -6, -4}), 1);
    EXPECT_EQ(value_of("acc", item_of({"a", "b", "c"}, {1, 2}), {-3, -6, -4}), 0);
    EXPECT_EQ(value_of("exact_match", item_of({"a", "b"}, {1}), {-2, -0.5}), 1);
    EXPECT_EQ(value_of("exact_match", item_of({"a", "b"}, {0}), {-2, -0.5}), 0);
}

TEST(Metrics, TargetsAndLabels) {
    EXPECT_EQ(value_of("acc", item_of({" x"}, {}), {-0.5}, TaskOutput::loglikelihood), 1);
    EXPECT_EQ(value_of("acc", item_of({" x"}, {}), {-1.5}, TaskOutput::loglikelihood), 0);
    EXPECT_EQ(value_of("perplexity", item_of({" x"}, {}), {-1.5}, TaskOutput::loglikelihood), -1.5);
    const TaskItem labels = item_of({"true", "false"}, {1});
    EXPECT_EQ(value_of("acc", labels, {-3, -2}, TaskOutput::label_probability), 1);
    EXPECT_EQ(value_of("log_prob", labels, {-3, -2}, TaskOutput::label_probability), -2);
    EXPECT_EQ(value_of("label_probability", labels, {-3, -2}, TaskOutput::label_probability), std::exp(-2.0));
    EXPECT_EQ(value_of("acc", labels, {-3, -2}, TaskOutput::masked_lm), 1);
}

double text_value(const std::string& metric, const std::string& answer, std::vector<std::string> references) {
    TaskItem item;
    item.references = std::move(references);
    return item_values(spec_of(TaskOutput::generate_until), metric, item, {{}, answer}).at(0);
}

TEST(Metrics, GeneratedText) {
    EXPECT_EQ(text_value("exact_match", "Paris", {"London", "Paris"}), 1);
    EXPECT_EQ(text_value("exact_match", " Paris", {"Paris"}), 0);
    EXPECT_EQ(text_value("em", " the Eiffel-Tower.", {"eiffeltower"}), 1);
    EXPECT_EQ(text_value("em", "a tower", {"towers"}), 0);
    EXPECT_EQ(text_value("f1", "The cat sat", {"a cat sat down", "dog"}), 0.8);
    EXPECT_EQ(text_value("f1", "cat cat", {"cat"}), 2 * 0.5 / 1.5);
    EXPECT_EQ(text_value("f1", "the", {"an"}), 1);
    EXPECT_EQ(text_value("f1", "the", {"word"}), 0);
    EXPECT_EQ(text_value("string_match_all", "It is 12AB, and 77", {"12ab", "77", "9"}), 2.0 / 3);
    EXPECT_EQ(normalize_answer(" An  Apple, a day (the) end! "), "apple day end");
}

// OpenCompass: -8.8 of 11 tokens is better than -8.5 of 10.
TEST(Metrics, AccuracyByTokensOfTheWholeText) {
    Answer answer{.choices = {{-8.5, false}, {-8.8, false}}, .tokens = {10, 11}};
    const TaskItem item = item_of({"long text", "x"}, {1});
    const TaskSpec spec = spec_of(TaskOutput::multiple_choice);
    EXPECT_EQ(item_values(spec, "acc_ppl", item, answer).at(0), 1);
    EXPECT_EQ(item_values(spec, "acc", item, answer).at(0), 0);
    answer.tokens = {10, 10};
    EXPECT_EQ(item_values(spec, "acc_ppl", item, answer).at(0), 0);
}

TEST(Metrics, AsLaserCountsThem) {
    TaskItem item;
    item.prompts = {"Who is older, Ann or Bob? The answer is"};
    item.references = {" Bob "};
    const TaskSpec spec = spec_of(TaskOutput::generate_until);
    Answer answer{.choices = {{-6, false}}, .text = " Ann.", .scored = {4}};
    EXPECT_EQ(item_values(spec, "laser_acc", item, answer).at(0), 1);  // it is in the question
    EXPECT_EQ(item_values(spec, "nll", item, answer).at(0), 1.5);
    answer.filled = true;
    EXPECT_EQ(item_values(spec, "laser_acc", item, answer).at(0), 0);
    answer.text = " bob,";
    EXPECT_EQ(item_values(spec, "laser_acc", item, answer).at(0), 1);
    EXPECT_EQ(value_of("nll", item_of({"true", "false"}, {1}), {-3, -2}, TaskOutput::label_probability), 2);
    EXPECT_FALSE(higher_is_better("nll"));
}

// Values of nltk 3.9's single_meteor_score() without stems and synonyms.
TEST(Meteor, EqualsNltk) {
    EXPECT_DOUBLE_EQ(meteor("the cat sat on the mat", "on the mat sat the cat"), 0.5);
    EXPECT_DOUBLE_EQ(meteor("le chat dort .", "le petit chat noir dort ."), 0.5441810344827586);
    EXPECT_DOUBLE_EQ(meteor("A b c d", "a B c d"), 0.9921875);
    EXPECT_DOUBLE_EQ(meteor("a b a b", "b a b"), 0.9498207885304659);
    EXPECT_EQ(meteor("x y", "z"), 0);
    EXPECT_EQ(meteor("", "z"), 0);
    EXPECT_EQ(text_value("meteor", "a b c d", {"x", "a b c d"}), 0.9921875);
}

MetricResult result_of(TaskOutput output, const std::string& metric, size_t width,
                       std::vector<double> values) {
    return aggregate(spec_of(output), {metric, width, std::move(values)}, 2);
}

TEST(Metrics, MeansAndTheirErrors) {
    const auto r = result_of(TaskOutput::multiple_choice, "acc", 1, {1, 0, 0, 1, 1});
    EXPECT_DOUBLE_EQ(r.value, 0.6);
    EXPECT_NEAR(r.standard_error.value(), 0.2449489742783178, 1e-15);
    EXPECT_FALSE(result_of(TaskOutput::multiple_choice, "acc", 1, {1}).standard_error.has_value());
}

// Bootstraps use lm-eval's draws.
TEST(Metrics, Perplexity) {
    const std::vector<double> likelihoods = {-1.0, -2.5, -0.3, -4.0, -1.7};
    const auto r = result_of(TaskOutput::loglikelihood, "perplexity", 1, likelihoods);
    EXPECT_NEAR(r.value, 6.6858944422792685, 1e-12);
    EXPECT_NEAR(r.standard_error.value(), 5.099230210023731, 1e-9);
    const auto perplexity = [](std::span<const double> sums, double n) { return std::exp(-sums[0] / n); };
    EXPECT_NEAR(bootstrap_error(likelihoods, 1, perplexity, 2500, 1), 5.16711200845309, 1e-9);
}

TEST(Metrics, F1AndMatthewsOfTwoClasses) {
    const std::vector<int> gold = {1, 0, 1, 1, 0, 0, 1, 0}, predicted = {1, 1, 1, 0, 0, 0, 0, 0};
    std::vector<double> values;
    for (size_t i = 0; i < gold.size(); ++i) {
        const TaskItem item = item_of({"no", "yes"}, {gold[i]});
        Answer answer;
        answer.choices = {{predicted[i] == 0 ? -1.0 : -2.0, false}, {-1.5, false}};
        const auto v = item_values(spec_of(TaskOutput::multiple_choice), "mcc", item, answer);
        values.insert(values.end(), v.begin(), v.end());
    }
    EXPECT_NEAR(result_of(TaskOutput::multiple_choice, "f1", 4, values).value, 0.5714285714285714, 1e-12);
    EXPECT_NEAR(result_of(TaskOutput::multiple_choice, "mcc", 4, values).value, 0.2581988897471611, 1e-12);
    const auto f1 = [](std::span<const double> s, double) {
        return s[0] > 0 ? 2 * s[0] / (2 * s[0] + s[1] + s[2]) : 0;
    };
    EXPECT_NEAR(bootstrap_error(values, 4, f1, 2000, 2), 0.2473851485856268, 1e-12);
}

const std::vector<std::string> kTranslations = {"The cat sat on the mat, didn't it?",
                                                "It costs 1,000.50 dollars -- or 5-6 euros & more.",
                                                "Bonjour le monde.", ""};
const std::vector<std::string> kReferences = {"The cat is sitting on the mat, isn't it?",
                                              "It costs 1,000.50 dollars, or 5-6 euros &amp; more!",
                                              "Bonjour à tout le monde.", "nothing here at all"};

double bleu_of(const std::string& text, const std::vector<std::string>& references) {
    return bleu(bleu_counts(text, references));
}

TEST(Bleu, TokensOf13a) {
    EXPECT_THAT(tokenize_13a("\"A.\"..b,c 3.5,4-5 l’été\u00a0x [y] {z} a_b <skipped>q"),
                ElementsAre("\"", "A", ".", "\"", ".", ".", "b", ",", "c", "3.5,4", "-", "5", "l’été", "x",
                            "[", "y", "]", "{", "z", "}", "a", "_", "b", "q"));
    EXPECT_THAT(tokenize_13a(kTranslations[1]), ElementsAre("It", "costs", "1,000.50", "dollars", "--", "or",
                                                            "5", "-", "6", "euros", "&", "more", "."));
    EXPECT_THAT(tokenize_13a("a-\nb\nc &lt;d&gt; "), ElementsAre("ab", "c", "<", "d", ">"));
}

TEST(Bleu, EqualsSacrebleu) {
    std::vector<double> values;
    for (size_t i = 0; i < kTranslations.size(); ++i) {
        TaskItem item;
        item.references = {kReferences[i]};
        const auto v = item_values(spec_of(TaskOutput::generate_until), "bleu", item, {{}, kTranslations[i]});
        values.insert(values.end(), v.begin(), v.end());
    }
    const auto r = result_of(TaskOutput::generate_until, "bleu", 10, values);
    EXPECT_NEAR(r.value, 42.280313627082755, 1e-9);
    EXPECT_NEAR(r.standard_error.value(), 15.560859655674207, 1e-9);
    EXPECT_NEAR(bleu_of(kTranslations[0], {kReferences[0]}), 32.11703274087687, 1e-9);
    EXPECT_NEAR(bleu_of(kTranslations[2], {kReferences[2]}), 38.75385825373298, 1e-9);
    EXPECT_NEAR(bleu_of("the the the cat sat down now", {"the cat sat", "a cat sat down today ok"}),
                34.57207846419411, 1e-9);
    EXPECT_NEAR(bleu_of("xx the yy cat ww", {"the zz cat vv uu"}), 12.703318703865365, 1e-9);
    EXPECT_EQ(bleu_of("", {"a"}), 0);
    EXPECT_EQ(bleu_of("a", {"a"}), 0);  // too short for four words
}

TEST(Metrics, UnknownOnesAndWrongOutputs) {
    EXPECT_THROW(check_metric(spec_of(TaskOutput::generate_until), "acc"), Error);
    EXPECT_THROW(check_metric(spec_of(TaskOutput::multiple_choice), "bleu"), Error);
    EXPECT_NO_THROW(check_metric(spec_of(TaskOutput::masked_lm), "acc"));
    EXPECT_TRUE(higher_is_better("acc"));
    EXPECT_FALSE(higher_is_better("perplexity"));
}

}  // namespace
}  // namespace refold
