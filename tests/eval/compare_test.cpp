#include "eval/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error_of.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "eval/excerpt.h"
#include "eval/protocols.h"
#include "exit/log_softmax.h"
#include "model/load.h"

namespace refold {
namespace {

using testing::HasSubstr;

const std::string kModel = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";
const std::string kHarness = std::string(REFOLD_FIXTURES) + "/eval/samples_lm_eval_ppl.jsonl";

const BootstrapOptions kFew{.resamples = 500};

TEST(McNemar, IsTheBinomialTest) {
    EXPECT_DOUBLE_EQ(mcnemar_exact(0, 0), 1);
    EXPECT_DOUBLE_EQ(mcnemar_exact(3, 3), 1);
    // 2 * (C(10,0) + C(10,1)) / 2^10
    EXPECT_NEAR(mcnemar_exact(1, 9), 22.0 / 1024, 1e-12);
    EXPECT_NEAR(mcnemar_exact(9, 1), 22.0 / 1024, 1e-12);
    EXPECT_NEAR(mcnemar_exact(0, 2000), std::exp2(-1999), 1e-300);
    EXPECT_NEAR(mcnemar_exact(1000, 1100), 0.0308, 1e-3);
}

TEST(Normal, TwoSided) {
    EXPECT_NEAR(normal_two_sided(1.959964), 0.05, 1e-6);
    EXPECT_NEAR(normal_two_sided(-1), 0.317311, 1e-6);
}

TEST(Bootstrap, IsThatOfTheMean) {
    // 400 differences of mean 0.1 and standard deviation 1: standard error 0.05.
    BootstrapRows rows{1, {}};
    for (int i = 0; i < 400; ++i) rows.values.push_back(0.1 + (i % 2 == 0 ? 1 : -1));
    const auto mean = [](std::span<const double> s) { return s[0] / 400; };
    const BootstrapInterval found = paired_bootstrap(rows, mean, {.resamples = 4000, .seed = 3});
    EXPECT_NEAR(found.low, 0.1 - 1.96 * 0.05, 0.01);
    EXPECT_NEAR(found.high, 0.1 + 1.96 * 0.05, 0.01);
    EXPECT_NEAR(found.p, normal_two_sided(2), 0.015);
    const BootstrapInterval again = paired_bootstrap(rows, mean, {.resamples = 4000, .seed = 3});
    EXPECT_EQ(again.low, found.low);
    EXPECT_NE(paired_bootstrap(rows, mean, {.resamples = 4000, .seed = 4}).low, found.low);
}

TEST(Divergence, IsTheSumOverTheVocabulary) {
    for (const size_t count : {3u, 17u, 5000u}) {
        std::mt19937 random(static_cast<uint32_t>(count));
        std::normal_distribution<float> normal(0.0F, 3.0F);
        std::vector<float> a(count), b(count);
        for (auto& x : a) x = normal(random);
        for (auto& x : b) x = normal(random);
        double expected = 0;
        const double la = log_sum_exp(a), lb = log_sum_exp(b);
        for (size_t i = 0; i < count; ++i) {
            const double pa = static_cast<double>(a[i]) - la, pb = static_cast<double>(b[i]) - lb;
            expected += std::exp(pa) * (pa - pb);
        }
        EXPECT_NEAR(kl_divergence(a, b), expected, 1e-5 * (1 + expected)) << count;
        EXPECT_NEAR(kl_divergence(a, a), 0, 1e-6);
    }
}

Samples samples(const std::string& text) { return parse_samples(text, "s.jsonl"); }

std::string accuracies(const std::string& name, const std::vector<int>& right) {
    std::string out;
    for (size_t i = 0; i < right.size(); ++i)
        out += fmt::format("{{\"doc_id\": {}, \"task\": \"{}\", \"acc\": {}}}\n", i, name, right[i]);
    return out;
}

TEST(Samples, PairsAreTestedItemByItem) {
    // B alone gets 6 right, A alone none.
    const auto found = compare_samples(samples(accuracies("t", {1, 0, 0, 0, 0, 0, 0, 1})),
                                       samples(accuracies("t", {1, 1, 1, 1, 1, 1, 1, 1})), kFew);
    ASSERT_EQ(found.rows.size(), 1u);
    const Difference& row = found.rows[0];
    EXPECT_EQ(row.test, "McNemar");
    EXPECT_EQ(row.items, 8);
    EXPECT_DOUBLE_EQ(row.a, 0.25);
    EXPECT_DOUBLE_EQ(row.b, 1);
    EXPECT_EQ(row.only_b, 6);
    EXPECT_NEAR(*row.p, 2.0 / 64, 1e-12);
    EXPECT_GT(*row.low, 0);
    EXPECT_TRUE(found.notes.empty());
}

TEST(Samples, MeansAndPerplexities) {
    const std::string a =
        "{\"doc_id\":0,\"perplexity\":[-10,5],\"f1\":0.5,\"metrics\":[\"perplexity\",\"f1\"]}\n"
        "{\"doc_id\":1,\"perplexity\":[-2,1],\"f1\":1,\"metrics\":[\"perplexity\",\"f1\"]}\n";
    const std::string b =
        "{\"doc_id\":0,\"perplexity\":[-15,5],\"f1\":0.5,\"metrics\":[\"perplexity\",\"f1\"]}\n"
        "{\"doc_id\":1,\"perplexity\":[-3,1],\"f1\":1,\"metrics\":[\"perplexity\",\"f1\"]}\n"
        "{\"doc_id\":2,\"perplexity\":[-3,1],\"f1\":1,\"metrics\":[\"perplexity\",\"f1\"]}\n";
    const auto found = compare_samples(samples(a), samples(b), kFew);
    ASSERT_EQ(found.rows.size(), 2u);
    EXPECT_EQ(found.rows[0].metric, "f1");
    EXPECT_EQ(found.rows[0].test, "paired bootstrap");
    EXPECT_DOUBLE_EQ(found.rows[0].a, 0.75);
    EXPECT_DOUBLE_EQ(*found.rows[0].p, 1);
    EXPECT_NEAR(found.rows[1].a, std::exp(2), 1e-12);
    EXPECT_NEAR(found.rows[1].b, std::exp(3), 1e-12);
    // Every resample has the same two means: there is no spread.
    EXPECT_NEAR(*found.rows[1].low, std::exp(3) - std::exp(2), 1e-9);
    EXPECT_LT(*found.rows[1].p, 0.01);
    ASSERT_EQ(found.notes.size(), 1u);
    EXPECT_THAT(found.notes[0], HasSubstr("0 of 2 in A, 1 of 3 in B"));
}

TEST(Samples, OneItemHasNoInterval) {
    const auto found =
        compare_samples(samples("{\"doc_id\":0,\"f1\":0.5}"), samples("{\"doc_id\":0,\"f1\":0.75}"), kFew);
    EXPECT_EQ(found.rows[0].test, "none");
    EXPECT_FALSE(found.rows[0].p || found.rows[0].low);
}

TEST(Samples, OtherDataIsRefused) {
    const auto message = error_of([] {
        compare_samples(samples("{\"doc_id\":0,\"doc_hash\":\"a\",\"acc\":1}"),
                        samples("{\"doc_id\":0,\"doc_hash\":\"b\",\"acc\":1}"), kFew);
    });
    EXPECT_THAT(message, HasSubstr("item 0 is not the same in both"));
    EXPECT_THAT(
        error_of([] { compare_samples(samples(accuracies("x", {1})), samples(accuracies("y", {1})), kFew); }),
        HasSubstr("got tasks 'x' and 'y'"));
}

TEST(Samples, ThoseOfTheHarnessItself) {
    const Samples harness = parse_samples(read_all(kHarness), kHarness);
    ASSERT_EQ(harness.size(), 1u);
    EXPECT_EQ(harness.begin()->first.filter, "none");
    const Sample& first = harness.begin()->second.at(0);
    EXPECT_EQ(first.metrics.size(), 3u);
    EXPECT_GT(*first.metrics.at("word_perplexity").weight, 100);
    EXPECT_EQ(first.hash.size(), 64u);

    // refold's samples on the same pages and model pair with them and do not differ.
    const std::string path = std::string(REFOLD_FIXTURES) + "/llama/model.gguf";
    const Model model = load_model(path);
    SingleSequence sequence(model, {.threads = 1, .context = 64, .f32 = true});
    const PerplexityPlan plan = plan_perplexity({.protocol = PerplexityProtocol::lm_eval, .context = 64},
                                                Tokenizer(path), excerpt(36), kExcerpt);
    const Samples own = samples(perplexity_samples(plan, measure_perplexity(sequence, plan)));
    const auto found = compare_samples(harness, own, kFew);
    ASSERT_EQ(found.rows.size(), 3u);
    for (const auto& row : found.rows) EXPECT_NEAR(row.difference(), 0, 1e-4 * row.a) << row.metric;
}

TEST(Samples, BadLinesAreNamed) {
    const std::string good = "{\"doc_id\":0,\"acc\":1}\n";
    const auto error = [&](const std::string& line) { return error_of([&] { samples(good + line); }); };
    EXPECT_THAT(error("{\"doc_id\":1,"), HasSubstr("'s.jsonl', line 2: no valid JSON"));
    EXPECT_THAT(error("{\"acc\":1}"), HasSubstr("line 2: no whole number \"doc_id\""));
    EXPECT_THAT(error("{\"doc_id\":0,\"acc\":1}"), HasSubstr("line 2: doc_id 0 is that of line 1 too"));
    EXPECT_THAT(error("{\"doc_id\":1,\"name\":\"x\"}"), HasSubstr("line 2: no metric"));
    EXPECT_THAT(error("{\"doc_id\":1,\"metrics\":[\"acc\"]}"), HasSubstr("line 2: \"metrics\" lists"));
    EXPECT_THAT(error("{\"doc_id\":1,\"metrics\":[\"acc\"],\"acc\":\"x\"}"), HasSubstr("\"acc\" is string"));
    EXPECT_THAT(error("{\"doc_id\":1,\"metrics\":[\"acc\"],\"acc\":1e999}"), HasSubstr("line 2: "));
    EXPECT_THAT(error("{\"doc_id\":1,\"perplexity\":[-1,0]}"), HasSubstr("units are not above 0"));
    EXPECT_THAT(error_of([] { samples("\n\n"); }), HasSubstr("'s.jsonl' has no items"));
}

class Results : public testing::Test {
protected:
    std::string write(const std::string& name, const std::string& text) const {
        write_all(folder / name, text);
        return folder / name;
    }
    Differences compare(const std::string& a, const std::string& b) const {
        return compare_results(read_result(a), read_result(b), kFew);
    }
    static std::string ppl(const std::string& more) {
        return "{\"perplexity\": 20.0, \"standard_error\": 3.0, \"protocol\": \"windows\", \"context\": 64" +
               more + "}";
    }
    TempFolder folder;
};

TEST_F(Results, WithoutSamplesAreUnpaired) {
    const std::string other =
        "{\"perplexity\": 30.0, \"standard_error\": 4.0, \"protocol\": \"windows\", \"context\": 64}";
    const auto found = compare(write("a.json", ppl("")), write("b.json", other));
    ASSERT_EQ(found.rows.size(), 1u);
    EXPECT_EQ(found.rows[0].test, "unpaired");
    EXPECT_NEAR(*found.rows[0].p, normal_two_sided(2), 1e-12);
    EXPECT_NEAR(*found.rows[0].low, 10 - 1.959964 * 5, 1e-5);
    EXPECT_THAT(found.notes[0], HasSubstr("unpaired"));
}

TEST_F(Results, OfTheHarnessFindTheirSamples) {
    const auto result = [](double acc) {
        return fmt::format(
            "{{\"results\": {{\"t\": {{\"alias\": \"t\", \"acc,none\": {}, \"acc_stderr,none\": 0.1}}}}, "
            "\"n-shot\": {{\"t\": 0}}}}",
            acc);
    };
    const std::string a = write("results_1.json", result(0.5)), b = write("results_2.json", result(0.75));
    EXPECT_EQ(compare(a, b).rows[0].test, "unpaired");
    write("samples_t_1.jsonl", accuracies("", {1, 0, 1, 0}));
    write("samples_t_2.jsonl", accuracies("", {1, 1, 1, 0}));
    const auto found = compare(a, b);
    ASSERT_EQ(found.rows.size(), 1u);
    EXPECT_EQ(found.rows[0].test, "McNemar");
    EXPECT_EQ(found.rows[0].task, "t");
    // Samples alone have no task's name.
    EXPECT_EQ(compare(a, folder / "samples_t_2.jsonl").rows[0].task, "t");
}

TEST_F(Results, OfOtherProtocolsOrDataAreRefused) {
    const std::string a = write("a.json", ppl(", \"provenance\": {\"data\": {\"sha256\": \"x\"}}"));
    const auto refused = [&](const std::string& text) {
        const std::string b = write("b.json", text);
        return error_of([&] { compare(a, b); });
    };
    EXPECT_THAT(refused(ppl(", \"provenance\": {\"data\": {\"sha256\": \"y\"}}")),
                HasSubstr("different data (SHA-256): got x in"));
    EXPECT_THAT(refused("{\"perplexity\": 1.0, \"protocol\": \"gptq\"}"),
                HasSubstr("different protocol: got windows in"));
    EXPECT_THAT(refused("{\"perplexity\": 1.0, \"protocol\": \"windows\", \"context\": 65}"),
                HasSubstr("different context: got 64 in"));
    EXPECT_THAT(refused("{\"protocol\": \"windows\"}"),
                HasSubstr("no figure with a standard error in common"));
}

TEST_F(Results, WhatIsNoResultIsNamed) {
    const auto refused = [&](const std::string& name, const std::string& text) {
        const std::string path = write(name, text);
        return error_of([&] { read_result(path); },
                        name == "missing.json" ? ErrorCode::io : ErrorCode::input);
    };
    EXPECT_THAT(refused("a.json", "{}"), HasSubstr("is no result"));
    EXPECT_THAT(refused("a.json", "{"), HasSubstr("no valid JSON at byte"));
    EXPECT_THAT(refused("missing.json", ppl(", \"samples\": \"gone.jsonl\"")), HasSubstr("gone.jsonl"));
    write("s.jsonl", "{\"doc_id\":0,\"acc\":1}");
    EXPECT_THAT(refused("a.json", ppl(", \"samples\": {\"file\": \"s.jsonl\", \"sha256\": \"0\"}")),
                HasSubstr("has changed since"));
    EXPECT_THAT(refused("a.json", ppl(", \"samples\": 3")), HasSubstr("\"samples\""));
}

TEST(Models, AreRunSideBySide) {
    const Model model = load_model(kModel);
    const Tokenizer tokenizer(kModel);
    SingleSequence a(model, {.threads = 1, .context = 64, .f32 = true});
    SingleSequence b(load_model(std::string(REFOLD_FIXTURES) + "/quantized/q8_0.gguf"),
                     {.threads = 1, .context = 64});
    const PerplexityOptions o{.protocol = PerplexityProtocol::llama_cpp, .context = 64, .max_windows = 3};
    const PerplexityPlan plan = plan_perplexity(o, tokenizer, excerpt(12), "x");
    const PerplexityPlan same = plan_perplexity(o, tokenizer, excerpt(12), "x");
    const ModelComparison found = compare_models(a, plan, b, same, kFew);
    EXPECT_NEAR(found.a.perplexity, measure_perplexity(a, plan).perplexity, 1e-4 * found.a.perplexity);
    EXPECT_NEAR(found.b.perplexity, measure_perplexity(b, plan).perplexity, 1e-3 * found.b.perplexity);
    ASSERT_EQ(found.differences.rows.size(), 1u);
    EXPECT_NEAR(found.differences.rows[0].b, found.b.perplexity, 1e-9 * found.b.perplexity);
    ASSERT_TRUE(found.logits);

    // The definition, from all logits of each window.
    double divergence = 0, agreed = 0;
    const auto n_vocab = static_cast<size_t>(a.capabilities().n_vocab);
    for (const auto& w : plan.windows) {
        std::vector<int32_t> tokens{w.first};
        tokens.insert(tokens.end(), w.rest.begin(), w.rest.end());
        std::vector<float> rows[2];
        SingleSequence* sequences[2] = {&a, &b};
        for (int e = 0; e < 2; ++e) {
            sequences[e]->truncate(0);
            sequences[e]->evaluate_all(tokens, [&](size_t, std::span<const float> x) {
                rows[e].insert(rows[e].end(), x.begin(), x.end());
            });
        }
        for (size_t t = w.first_scored - 1; t + 1 < tokens.size(); ++t) {
            const auto x = std::span(rows[0]).subspan(t * n_vocab, n_vocab);
            const auto y = std::span(rows[1]).subspan(t * n_vocab, n_vocab);
            divergence += kl_divergence(x, y);
            agreed += argmax(x) == argmax(y) ? 1 : 0;
        }
    }
    const auto n = static_cast<double>(plan.tokens_scored());
    EXPECT_NEAR(found.logits->kl_divergence, divergence / n, 0.02 * divergence / n);
    EXPECT_NEAR(found.logits->top1_agreement, agreed / n, 0.03);
    EXPECT_GT(found.logits->kl_divergence, 0);
    EXPECT_LT(found.logits->kl_interval->low, found.logits->kl_divergence);

    SingleSequence twin(model, {.threads = 1, .context = 64, .f32 = true});
    const ModelComparison itself = compare_models(a, plan, twin, same, kFew);
    EXPECT_EQ(itself.logits->kl_divergence, 0);
}

TEST(Models, OfOtherVocabulariesNeedDocuments) {
    const std::string other = std::string(REFOLD_FIXTURES) + "/llama/model.gguf";
    SingleSequence a(load_model(kModel), {.threads = 1, .context = 64, .f32 = true});
    SingleSequence b(load_model(other), {.threads = 1, .context = 64, .f32 = true});
    const auto compare = [&](PerplexityProtocol protocol, int64_t most) {
        const PerplexityOptions o{.protocol = protocol, .context = 64, .max_windows = most};
        const std::string whole = excerpt(36),
                          text = whole.substr(whole.find('\n', 4800));  // the ends of two pages
        return compare_models(a, plan_perplexity(o, Tokenizer(kModel), text, "x"), b,
                              plan_perplexity(o, Tokenizer(other), text, "x"), kFew);
    };
    EXPECT_THAT(error_of([&] { compare(PerplexityProtocol::windows, 1); }),
                HasSubstr("different vocabularies"));
    const ModelComparison found = compare(PerplexityProtocol::lm_eval, 2);
    EXPECT_FALSE(found.logits);
    EXPECT_EQ(found.differences.rows.size(), 3u);  // not by tokens
}

}  // namespace
}  // namespace refold
