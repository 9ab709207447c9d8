#include "eval/protocols.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error_of.h"
#include "core/sha256.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "eval/documents.h"
#include "eval/excerpt.h"
#include "model/load.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using enum PerplexityProtocol;

const std::string kFixtures = REFOLD_FIXTURES;
const std::string kLlama = kFixtures + "/llama/model.gguf";  // adds BOS
const std::string kBpe = kFixtures + "/llama_gqa/model.gguf";

// Input and scored tokens of a window, in the form of lm-evaluation-harness's documentation.
std::pair<std::vector<int32_t>, std::vector<int32_t>> shown(const PerplexityWindow& w) {
    std::vector<int32_t> all{w.first};
    all.insert(all.end(), w.rest.begin(), w.rest.end());
    return {{all.begin(), all.end() - 1}, {all.begin() + static_cast<ptrdiff_t>(w.first_scored), all.end()}};
}

TEST(LmEval, RollingWindows) {
    PerplexityPlan plan;
    plan.options = {.protocol = lm_eval, .context = 4};
    add_rolling_windows(plan, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 99, {});
    ASSERT_EQ(plan.windows.size(), 3u);
    EXPECT_EQ(shown(plan.windows[0]),
              std::pair(std::vector<int32_t>{99, 0, 1, 2}, std::vector<int32_t>{0, 1, 2, 3}));
    EXPECT_EQ(shown(plan.windows[1]),
              std::pair(std::vector<int32_t>{3, 4, 5, 6}, std::vector<int32_t>{4, 5, 6, 7}));
    EXPECT_EQ(shown(plan.windows[2]),
              std::pair(std::vector<int32_t>{5, 6, 7, 8}, std::vector<int32_t>{8, 9}));
    EXPECT_EQ(plan.tokens_scored(), 10);
    EXPECT_EQ(plan.context_needed(), 4);
    add_rolling_windows(plan, {}, 99, {});  // an empty document: nothing to score
    add_rolling_windows(plan, {7}, 99, {});
    EXPECT_EQ(plan.items.size(), 3u);
    EXPECT_EQ(plan.windows.back().item, 2u);
    EXPECT_EQ(shown(plan.windows.back()), std::pair(std::vector<int32_t>{99}, std::vector<int32_t>{7}));
}

TEST(LlamaCpp, BosInEveryChunkAndItsSecondHalf) {
    const PerplexityOptions o{.protocol = llama_cpp, .context = 4};
    const PerplexityPlan plan = plan_llama_cpp({1, 2, 3, 4, 5, 6, 7, 8, 9}, 99, o);
    ASSERT_EQ(plan.windows.size(), 2u);
    EXPECT_EQ(shown(plan.windows[0]), std::pair(std::vector<int32_t>{99, 2, 3}, std::vector<int32_t>{4}));
    EXPECT_EQ(shown(plan.windows[1]), std::pair(std::vector<int32_t>{99, 6, 7}, std::vector<int32_t>{8}));
    EXPECT_EQ(shown(plan_llama_cpp({1, 2, 3, 4, 5, 6, 7, 8}, std::nullopt, o).windows[1]).first,
              (std::vector<int32_t>{5, 6, 7}));
    EXPECT_THAT(error_of([&] {
                    plan_llama_cpp({1, 2, 3, 4, 5, 6, 7}, 99, o);
                }),
                HasSubstr("7 tokens: llama.cpp needs two chunks of 4"));
}

TEST(Gptq, WholeWindowsOfJoinedRows) {
    const Tokenizer tokenizer(kLlama);
    const std::string text = excerpt(12);
    const auto tokens = tokenizer.encode(wikitext_rows_joined(text), true, true);
    const PerplexityPlan plan =
        plan_perplexity({.protocol = gptq, .context = 64}, tokenizer, text, "wiki.txt");
    EXPECT_EQ(plan.windows.size(), tokens.size() / 64);
    EXPECT_EQ(plan.tokens.front(), tokens);
    EXPECT_EQ(plan.windows[0].first, *tokenizer.bos());
    EXPECT_EQ(plan.windows[1].first, tokens[64]);  // no second BOS
    EXPECT_EQ(plan.windows[1].first_scored, 1u);
    EXPECT_EQ(plan.bos, "text");
    EXPECT_THAT(error_of([&] {
                    plan_perplexity({.protocol = gptq, .context = 100000}, tokenizer, text, "wiki.txt");
                }),
                HasSubstr("'wiki.txt' has"));
}

TEST(Protocols, NamesAndOptions) {
    for (const auto protocol : {windows, gptq, llama_cpp, lm_eval})
        EXPECT_EQ(protocol_from_name(protocol_name(protocol)), protocol);
    EXPECT_THAT(error_of([] { protocol_from_name("lmeval"); }, ErrorCode::usage),
                HasSubstr("did you mean 'lm-eval'?"));
    const Tokenizer tokenizer(kLlama);
    for (const auto protocol : {gptq, llama_cpp, lm_eval})
        EXPECT_THAT(error_of(
                        [&] {
                            plan_perplexity({.protocol = protocol, .context = 64, .stride = 8}, tokenizer,
                                            excerpt(12), "x");
                        },
                        ErrorCode::usage),
                    HasSubstr("--stride belongs to --protocol windows"));
}

TEST(Protocols, WithoutBos) {
    GgufMetadata metadata = load_model(kBpe).metadata;
    metadata.set("tokenizer.ggml.add_bos_token", GgufValue::boolean(false));
    const Tokenizer tokenizer(metadata, "x");
    const std::string text = excerpt(12);
    for (const auto protocol : {windows, gptq, llama_cpp}) {
        const PerplexityPlan plan =
            plan_perplexity({.protocol = protocol, .context = 64}, tokenizer, text, "x");
        EXPECT_EQ(plan.bos, "none") << protocol_name(protocol);
        EXPECT_EQ(plan.windows[1].first, plan.tokens.front()[64]) << protocol_name(protocol);
    }
    const PerplexityPlan plan = plan_perplexity({.protocol = lm_eval, .context = 64}, tokenizer,
                                                "{\"text\": \"a b\"}\n{\"text\": \"\"}", "x");
    EXPECT_EQ(plan.windows[0].first, *tokenizer.bos());
    EXPECT_EQ(plan.windows.size(), 1u);
    EXPECT_EQ(plan.items.size(), 2u);
    EXPECT_THAT(error_of([&] {
                    plan_perplexity({.protocol = lm_eval, .context = 64}, tokenizer, "{\"text\": \"\"}",
                                    "e.jsonl");
                }),
                HasSubstr("'e.jsonl' has no document with a token"));
}

// Scores the windows of a text from the logits of each whole window.
double reference(const Model& model, const PerplexityPlan& plan) {
    double nll = 0;
    for (const auto& w : plan.windows) {
        const auto [input, scored] = shown(w);
        const auto logits = all_logits(model, input, {.threads = 1, .f32 = true});
        const auto n_vocab = static_cast<size_t>(model.config.n_vocab);
        for (size_t i = 0; i < scored.size(); ++i) {
            const auto row = std::span(logits).subspan((input.size() - scored.size() + i) * n_vocab, n_vocab);
            double sum = 0;
            for (const float x : row) sum += std::exp(static_cast<double>(x));
            nll += std::log(sum) - static_cast<double>(row[static_cast<size_t>(scored[i])]);
        }
    }
    return std::exp(nll / static_cast<double>(plan.tokens_scored()));
}

TEST(Protocols, ScoreWhatTheirWindowsSay) {
    const Model model = load_model(kBpe);
    const Tokenizer tokenizer(kBpe);
    SingleSequence sequence(model, {.threads = 1, .context = 64, .f32 = true});
    for (const auto protocol : {windows, gptq, llama_cpp, lm_eval}) {
        const PerplexityPlan plan = plan_perplexity({.protocol = protocol, .context = 48, .max_windows = 2},
                                                    tokenizer, excerpt(12), "x");
        const PerplexityResult r = measure_perplexity(sequence, plan);
        EXPECT_NEAR(r.perplexity / reference(model, plan), 1, 1e-5) << protocol_name(protocol);
        EXPECT_EQ(r.tokens_scored, plan.tokens_scored());
        EXPECT_NEAR(r.running().back(), r.perplexity, 1e-9 * r.perplexity);
        EXPECT_EQ(r.word_perplexity.has_value(), protocol == lm_eval);
    }
}

// The output of llama-perplexity; the file has the commands.
TEST(LlamaCpp, AgreesWithLlamaPerplexity) {
    const json golden = json::parse(read_all(kFixtures + "/eval/llama_perplexity.json"));
    for (const auto& run : golden["runs"]) {
        const std::string path = kFixtures + "/" + run["model"].get<std::string>();
        const Model model = load_model(path);
        SingleSequence sequence(model, {.threads = 1, .context = run["context"], .f32 = true});
        const PerplexityPlan plan = plan_perplexity({.protocol = llama_cpp, .context = run["context"]},
                                                    Tokenizer(path), excerpt(golden["lines"]), kExcerpt);
        const PerplexityResult r = measure_perplexity(sequence, plan);
        const auto running = r.running();
        const std::vector<double> printed = run["running"];
        ASSERT_EQ(running.size(), printed.size()) << path;
        // llama-perplexity prints four decimals.
        for (size_t i = 0; i < printed.size(); ++i)
            EXPECT_NEAR(running[i], printed[i], 1e-4 + 2e-6 * printed[i]) << path << " " << i;
        EXPECT_NEAR(r.standard_error, run["error"].get<double>(), 2e-5 + 1e-5 * r.standard_error) << path;
    }
}

// The figures of lm-evaluation-harness, by tests/tools/make_lm_eval_ppl_golden.py.
TEST(LmEval, AgreesWithTheHarness) {
    const json golden = json::parse(read_all(kFixtures + "/eval/lm_eval_ppl.json"));
    const std::string text = excerpt(36);
    EXPECT_EQ(sha256_hex(std::as_bytes(std::span(text))), golden["text_sha256"]);
    const Documents split = split_documents(text, kExcerpt);
    ASSERT_EQ(split.documents.size(), golden["documents"].size());
    for (size_t i = 0; i < split.documents.size(); ++i) {
        const auto& expected = golden["documents"][i];
        const Document& document = split.documents[i];
        EXPECT_EQ(document.hash, expected["doc_hash"]);
        EXPECT_EQ(sha256_hex(std::as_bytes(std::span(document.text))), expected["target_hash"]);
        EXPECT_EQ(document.words, expected["words"]);
        EXPECT_EQ(document.bytes, expected["bytes"]);
    }
    const Model model = load_model(kLlama);
    const int64_t context = golden["max_length"];
    SingleSequence sequence(model, {.threads = 1, .context = context, .f32 = true});
    const PerplexityPlan plan =
        plan_perplexity({.protocol = lm_eval, .context = context}, Tokenizer(kLlama), text, kExcerpt);
    const PerplexityResult r = measure_perplexity(sequence, plan);
    for (size_t i = 0; i < plan.items.size(); ++i) {
        const double expected = golden["documents"][i]["log_likelihood"];
        EXPECT_NEAR(-r.item_nll[i], expected, 1e-5 * std::abs(expected)) << i;
    }
    const json& results = golden["results"];
    const auto near = [&](const PerplexityMeasure& measure, const char* name) {
        const double expected = results[name];
        EXPECT_NEAR(measure.value, expected, 1e-4 * expected) << name;
        EXPECT_TRUE(measure.standard_error.has_value());
    };
    near(*r.word_perplexity, "word_perplexity,none");
    near(*r.byte_perplexity, "byte_perplexity,none");
    near(*r.bits_per_byte, "bits_per_byte,none");
}

TEST(LmEval, StandardErrorsAreOfDocuments) {
    PerplexityPlan plan;
    plan.options = {.protocol = lm_eval, .context = 8};
    add_rolling_windows(plan, {1, 2}, 0, {"", 2, 10});
    PerplexitySums one(plan);
    one.add(plan.windows[0], std::vector<double>{1, 3});
    EXPECT_FALSE(one.result(1).word_perplexity->standard_error);
    EXPECT_NEAR(one.result(1).word_perplexity->value, std::exp(4.0 / 2), 1e-12);

    add_rolling_windows(plan, {3}, 0, {"", 1, 5});
    PerplexitySums two(plan);
    two.add(plan.windows[0], std::vector<double>{1, 3});
    two.add(plan.windows[1], std::vector<double>{5});
    // Mean 9 / 3 per word; residuals 4 - 6 and 5 - 3: sqrt(2 / 1 * 8) / 3.
    const auto r = two.result(1);
    EXPECT_NEAR(r.word_perplexity->value, std::exp(3), 1e-9);
    EXPECT_NEAR(*r.word_perplexity->standard_error, std::exp(3) * 4 / 3, 1e-9);
    EXPECT_NEAR(r.bits_per_byte->value, 9 / 15.0 / std::log(2.0), 1e-12);
    EXPECT_NEAR(*r.bits_per_byte->standard_error, 4 / 15.0 / std::log(2.0), 1e-12);
}

}  // namespace
}  // namespace refold
