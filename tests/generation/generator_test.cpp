#include "generation/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "core/code_of.h"
#include "core/text.h"
#include "model/load.h"
#include "serve/fake_engine.h"

namespace refold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kModel = REFOLD_FIXTURES "/llama_gqa/model.gguf";

const Tokenizer& tokenizer() {
    static const Tokenizer instance(kModel);
    return instance;
}

GenerationRequest request(std::vector<int32_t> prompt, int64_t max_tokens) {
    GenerationRequest out;
    out.prompt = std::move(prompt);
    out.max_tokens = max_tokens;
    out.ignore_eos = true;
    return out;
}

GenerationResult alone(const FakeEngineOptions& options, const GenerationRequest& request) {
    FakeEngine engine(options);
    return Generator(engine, tokenizer()).run(request);
}

std::vector<GenerationRequest> many_requests() {
    std::vector<GenerationRequest> all;
    for (int32_t i = 0; i < 40; ++i) {
        // Some begin with others, some are equal.
        std::vector<int32_t> prompt{7, 8, 9};
        for (int32_t k = 0; k < i % 13; ++k) prompt.push_back(10 + (i % 3) * k);
        GenerationRequest r = request(prompt, i % 7);
        if (i % 2 == 1)
            r.sampling = {.temperature = 1, .repetition_penalty = 1.2, .seed = static_cast<uint32_t>(i)};
        if (i % 5 == 0) r.logprobs = 2;
        if (i % 8 == 0) r.prompt_logprobs = true;
        all.push_back(std::move(r));
    }
    return all;
}

TEST(Generator, ManyPromptsGetWhatTheyGetAlone) {
    const auto requests = many_requests();
    for (const FakeEngineOptions& options :
         {FakeEngineOptions{}, FakeEngineOptions{.kv_tokens = 256}, FakeEngineOptions{.max_rows = 5},
          FakeEngineOptions{.loops = 3, .max_rows = 9}}) {
        FakeEngine engine(options);
        const auto results = Generator(engine, tokenizer()).run(requests);
        EXPECT_EQ(engine.open_sequences(), 0);
        ASSERT_EQ(results.size(), requests.size());
        for (size_t i = 0; i < requests.size(); ++i) {
            const GenerationResult expected = alone(options, requests[i]);
            EXPECT_EQ(results[i].tokens, expected.tokens) << i;
            EXPECT_EQ(results[i].text, expected.text) << i;
            EXPECT_EQ(results[i].finished, FinishReason::length) << i;
            EXPECT_EQ(results[i].logprobs.size(), expected.logprobs.size()) << i;
            ASSERT_EQ(results[i].prompt_logprobs.size(), expected.prompt_logprobs.size()) << i;
            for (size_t t = 0; t < expected.prompt_logprobs.size(); ++t)
                EXPECT_EQ(results[i].prompt_logprobs[t].logprob, expected.prompt_logprobs[t].logprob);
        }
    }
}

TEST(Generator, TheSeedDecides) {
    GenerationRequest asked = request({5, 6}, 30);
    asked.sampling = {.temperature = 1, .seed = 3};
    const auto first = alone({}, asked);
    EXPECT_EQ(alone({}, asked).tokens, first.tokens);
    asked.sampling.seed = 4;
    EXPECT_NE(alone({}, asked).tokens, first.tokens);
}

TEST(Generator, NoTokensAtAll) {
    FakeEngine engine({});
    Generator generator(engine, tokenizer());
    const GenerationResult none = generator.run(request({5, 6, 7}, 0));
    EXPECT_THAT(none.tokens, IsEmpty());
    EXPECT_EQ(none.text, "");
    EXPECT_EQ(none.finished, FinishReason::length);
    EXPECT_FALSE(none.context_full);
    EXPECT_EQ(engine.steps(), 0);
    GenerationRequest scored = request({5, 6, 7}, 0);
    scored.prompt_logprobs = true;
    scored.logprobs = 3;
    const GenerationResult scores = generator.run(scored);
    ASSERT_EQ(scores.prompt_logprobs.size(), 2U);
    EXPECT_EQ(scores.prompt_logprobs[0].token, 6);
    EXPECT_EQ(scores.prompt_logprobs[1].top.size(), 3U);
    EXPECT_THAT(generator.run(std::vector<GenerationRequest>{}), IsEmpty());
}

TEST(Generator, EndsWithTheContext) {
    for (const size_t prompt : {12U, 11U, 1U}) {
        const GenerationResult result =
            alone({.context = 12}, request(std::vector<int32_t>(prompt, 9), 1000));
        EXPECT_EQ(result.tokens.size(), 13 - prompt);  // the last one needs no row
        EXPECT_TRUE(result.context_full);
        EXPECT_EQ(result.finished, FinishReason::length);
    }
    EXPECT_FALSE(alone({.context = 12}, request({9, 9}, 11)).context_full);
    EXPECT_TRUE(alone({.context = 12}, request({9, 9}, 12)).context_full);
}

TEST(Generator, StopTextsAndTokens) {
    GenerationRequest asked = request({50, 60, 70}, 60);
    const GenerationResult all = alone({.n_vocab = 200}, asked);
    ASSERT_GT(all.text.size(), 30U);
    const std::string stop = all.text.substr(20, 4);
    asked.stop = {"nowhere", "", stop};
    const GenerationResult by_text = alone({.n_vocab = 200}, asked);
    EXPECT_EQ(by_text.text, all.text.substr(0, all.text.find(stop)));
    EXPECT_EQ(by_text.stop_text, stop);
    EXPECT_EQ(by_text.finished, FinishReason::stop);
    EXPECT_EQ(by_text.end_token, std::nullopt);

    asked.stop = {};
    asked.stop_tokens = {all.tokens[5]};
    const GenerationResult by_token = alone({.n_vocab = 200}, asked);
    const auto first = static_cast<size_t>(std::ranges::find(all.tokens, all.tokens[5]) - all.tokens.begin());
    EXPECT_EQ(by_token.tokens, std::vector<int32_t>(all.tokens.begin(), all.tokens.begin() + first));
    EXPECT_EQ(by_token.end_token, all.tokens[5]);
    EXPECT_EQ(by_token.stop_text, "");
    EXPECT_EQ(by_token.finished, FinishReason::stop);
}

// A format bounds every token, whatever the model would choose, and its end ends the generation.
TEST(Generator, TextHasItsFormat) {
    const FakeEngineOptions options{.n_vocab = tokenizer().size()};
    const OutputFormat yes_or_no{.kind = OutputFormat::Kind::choice, .choices = {"yes", "no"}};
    std::set<std::string> seen;
    for (uint32_t seed = 0; seed < 30; ++seed) {
        GenerationRequest asked = request({5, 6}, 30);
        asked.ignore_eos = seed % 2 == 0;
        asked.format = yes_or_no;
        asked.sampling = {.temperature = seed == 0 ? 0.0 : 2.0, .top_k = 0, .top_p = 1, .seed = seed};
        const GenerationResult result = alone(options, asked);
        EXPECT_EQ(result.finished, FinishReason::stop);
        seen.insert(result.text);
    }
    EXPECT_EQ(seen, (std::set<std::string>{"no", "yes"}));

    GenerationRequest cut = request({5, 6}, 3);
    cut.format = {.kind = OutputFormat::Kind::regex, .text = "a{100}"};
    const GenerationResult result = alone(options, cut);
    EXPECT_EQ(result.finished, FinishReason::length);
    EXPECT_EQ(result.text, std::string(result.text.size(), 'a'));
    cut.format.text = "(a";
    EXPECT_EQ(code_of([&] { alone(options, cut); }), ErrorCode::usage);
}

// Early loops draft within the format, too, and the result is that of all loops.
TEST(Generator, DraftsHaveTheFormat) {
    const FakeEngineOptions options{.loops = 3, .n_vocab = tokenizer().size(), .common = 2, .own = 1};
    for (uint32_t seed = 0; seed < 12; ++seed) {
        GenerationRequest asked = request({5, 6}, 40);
        asked.format = {.kind = OutputFormat::Kind::regex, .text = "[ab]{20,30}c"};
        asked.sampling = {.temperature = seed == 0 ? 0.0 : 1.0,
                          .repetition_penalty = seed % 2 == 0 ? 1.0 : 1.1,
                          .seed = seed};
        const GenerationResult expected = alone(options, asked);
        FakeEngine engine(options);
        Generator generator(engine, tokenizer(), {.decoding = {.draft = 4, .draft_always = true}});
        const GenerationResult drafted = generator.run(asked);
        EXPECT_EQ(drafted.text, expected.text);
        EXPECT_EQ(drafted.finished, FinishReason::stop);
        EXPECT_TRUE(std::regex_match(drafted.text, std::regex(asked.format.text))) << drafted.text;
        EXPECT_GT(generator.counts().accepted, 0U);
    }
}

// Drafts from the sequence itself change nothing but the number of steps.
TEST(Generator, LookedUpDraftsChangeNothing) {
    const FakeEngineOptions options{.n_vocab = 5};
    for (uint32_t seed = 0; seed < 10; ++seed) {
        std::vector<GenerationRequest> requests;
        for (int32_t i = 0; i < 6; ++i) {
            requests.push_back(request({i % 5, 1, 2, 3, 1, 2, 3, 1}, 60));
            requests.back().sampling = {.temperature = seed == 0 ? 0.0 : 1.0,
                                        .repetition_penalty = seed % 3 == 1 ? 1.3 : 1.0,
                                        .seed = seed};
        }
        FakeEngine engine(options);
        Generator generator(engine, tokenizer(), {.decoding = {.lookup = 5}});
        const auto results = generator.run(requests);
        for (size_t i = 0; i < requests.size(); ++i)
            EXPECT_EQ(results[i].tokens, alone(options, requests[i]).tokens) << seed << " " << i;
        EXPECT_GT(generator.counts().drafted, 0U);
        EXPECT_EQ(engine.open_sequences(), 0);
    }
    FakeEngine looped({.loops = 2});
    EXPECT_EQ(code_of([&] { Generator(looped, tokenizer(), {.decoding = {.lookup = 5}}); }),
              ErrorCode::usage);
}

TEST(Generator, RepeatedTextTakesFewerSteps) {
    const FakeEngineOptions options{.n_vocab = tokenizer().size()};
    GenerationRequest asked = request({5, 6}, 200);
    asked.format = {.kind = OutputFormat::Kind::regex, .text = "(xyzw){25}"};
    FakeEngine plain(options), with_drafts(options);
    const GenerationResult expected = Generator(plain, tokenizer()).run(asked);
    Generator generator(with_drafts, tokenizer(), {.decoding = {.lookup = 8, .draft_always = true}});
    const GenerationResult result = generator.run(asked);
    EXPECT_EQ(result.text, expected.text);
    EXPECT_EQ(result.tokens, expected.tokens);
    EXPECT_LT(with_drafts.steps() * 2, plain.steps());
}

// A model's drafts change nothing but the number of steps, for one sequence and for several, whatever
// chooses.
TEST(Generator, AModelsDraftsChangeNothing) {
    const FakeEngineOptions options{.n_vocab = 40, .own = 0.5};
    FakeEngineOptions smaller = options;
    smaller.own = 0.7F;
    for (const size_t count : {1U, 5U}) {
        for (const SamplingOptions& sampling :
             {SamplingOptions{}, SamplingOptions{.temperature = 1, .seed = 3},
              SamplingOptions{.temperature = 0.8, .repetition_penalty = 1.3, .seed = 4},
              SamplingOptions{.temperature = 1, .mirostat = 2, .mirostat_tau = 2, .seed = 5}}) {
            std::vector<GenerationRequest> requests;
            for (size_t i = 0; i < count; ++i) {
                requests.push_back(request({static_cast<int32_t>(i), 1, 2}, 60));
                requests.back().sampling = sampling;
            }
            FakeEngine engine(options), draft(smaller), plain(options);
            GeneratorOptions drafting{.decoding = {.draft_tokens = 4, .draft_always = true}};
            drafting.decoding.draft_model = &draft;
            Generator generator(engine, tokenizer(), drafting);
            const auto results = generator.run(requests);
            const auto expected = Generator(plain, tokenizer()).run(requests);
            for (size_t i = 0; i < count; ++i) EXPECT_EQ(results[i].tokens, expected[i].tokens) << i;
            EXPECT_GT(generator.counts().accepted, generator.counts().drafted / 2);
            EXPECT_LT(engine.steps() * 3, plain.steps() * 2);
            EXPECT_EQ(engine.open_sequences() + draft.open_sequences(), 0);
        }
    }
}

// A model drafts in the format, and may lack room.
TEST(Generator, AModelDraftsWhereItCan) {
    const FakeEngineOptions options{.n_vocab = tokenizer().size()};
    for (const int64_t kv_tokens : {120, 170, 2000}) {
        FakeEngineOptions small = options;
        small.kv_tokens = kv_tokens;
        small.max_rows = 30;
        FakeEngine engine(options), draft(small);
        GeneratorOptions drafting{.decoding = {.draft_tokens = 8, .draft_always = true}};
        drafting.decoding.draft_model = &draft;
        Generator generator(engine, tokenizer(), drafting);
        GenerationRequest asked = request(std::vector<int32_t>(100, 7), 60);
        asked.format = {.kind = OutputFormat::Kind::regex, .text = "[ab]{100}"};
        asked.sampling.temperature = 1;
        const std::vector<GenerationRequest> requests{asked, asked};
        const auto results = generator.run(requests);
        for (const auto& result : results) EXPECT_EQ(result.tokens, alone(options, asked).tokens);
        EXPECT_GT(generator.counts().drafted, 0U) << kv_tokens;
        EXPECT_EQ(draft.open_sequences(), 0);
    }
}

TEST(Generator, DraftsThatCannotBeVerifiedAreRefused) {
    FakeEngine looped({.loops = 2}), draft({}), plain({});
    const auto code = [](Engine& engine, const DecodingOptions& decoding) {
        return code_of([&] { Generator(engine, tokenizer(), {.decoding = decoding}); });
    };
    EXPECT_EQ(code(looped, {.draft_tokens = 2, .draft_model = &draft}), ErrorCode::usage);
    EXPECT_EQ(code(plain, {.lookup = 2, .draft_tokens = 2, .draft_model = &draft}), ErrorCode::usage);
    const auto evicts =
        make_engine(load_model(kModel),
                    {.threads = 1, .context = 64, .eviction = {.policy = KvPolicy::recent, .budget = 0.5}});
    EXPECT_EQ(code(*evicts, {.lookup = 2}), ErrorCode::usage);
}

TEST(PromptLookup, WhatFollowedTheLongestAgreement) {
    PromptLookup lookup;
    const std::vector<int32_t> tokens = {1, 2, 3, 4, 9, 2, 3, 5, 6, 1, 2, 3, 4, 8, 2, 3};
    EXPECT_THAT(lookup.next(std::span(tokens).first(3), 9), IsEmpty());
    EXPECT_THAT(lookup.next(std::span(tokens).first(7), 9), ElementsAre(4));      // after 2 3
    EXPECT_THAT(lookup.next(std::span(tokens).first(12), 9), ElementsAre(4));     // after 1 2 3
    EXPECT_THAT(lookup.next(std::span(tokens).first(13), 9), ElementsAre(9, 2));  // after 1 2 3 4
    EXPECT_THAT(lookup.next(std::span(tokens).first(13), 1), ElementsAre(9));
    EXPECT_THAT(lookup.next(tokens, 9), ElementsAre(4));  // of several that agree as much, the latest
    EXPECT_THAT(lookup.next(tokens, 0), IsEmpty());
    EXPECT_THAT(lookup.next(std::span<const int32_t>(), 9), IsEmpty());
}

// Text that streams is the text of the result, in whole characters.
TEST(Generator, StreamsWholeCharacters) {
    bool multibyte = false;
    for (uint32_t seed = 0; seed < 20; ++seed) {
        FakeEngine engine({.n_vocab = 300});
        GenerationRequest asked = request({5}, 60);
        asked.sampling = {.temperature = 2, .top_k = 0, .top_p = 1, .seed = seed};
        std::string streamed;
        std::vector<int32_t> tokens;
        const auto result =
            Generator(engine, tokenizer())
                .run(asked, {.on_event = [&](size_t r, const GenerationEvent& event) {
                         EXPECT_EQ(r, 0U);
                         EXPECT_EQ(find_invalid_utf8(event.text), std::string::npos);
                         streamed += event.text;
                         tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
                         return true;
                     }});
        EXPECT_EQ(streamed, result.text);
        EXPECT_EQ(tokens, result.tokens);
        for (const char c : result.text) multibyte |= static_cast<signed char>(c) < 0;
    }
    EXPECT_TRUE(multibyte);
}

TEST(Generator, TextByTheCallersDecoder) {
    FakeEngine engine({});
    GeneratorOptions options;
    options.decode = [](std::span<const int32_t> tokens) {
        std::string text;
        for (const int32_t token : tokens) text += std::to_string(token) + ' ';
        return text;
    };
    GenerationRequest asked = request({5}, 4);
    const GenerationResult result = Generator(engine, tokenizer(), options).run(asked);
    std::string expected;
    for (const int32_t token : result.tokens) expected += std::to_string(token) + ' ';
    EXPECT_EQ(result.text, expected);
    asked.stop = {std::to_string(result.tokens[2])};
    EXPECT_EQ(Generator(engine, tokenizer(), options).run(asked).text,
              expected.substr(0, expected.find(asked.stop[0])));
}

TEST(Generator, ACallbackCancelsOneOfMany) {
    FakeEngine engine({});
    const auto results = Generator(engine, tokenizer())
                             .run(std::vector<GenerationRequest>{request({5}, 20), request({6}, 20)},
                                  {.on_event = [](size_t r, const GenerationEvent& event) {
                                      return r == 1 || event.tokens.empty();
                                  }});
    EXPECT_EQ(results[0].finished, FinishReason::cancelled);
    EXPECT_EQ(results[0].tokens.size(), 1U);
    EXPECT_EQ(results[1].finished, FinishReason::length);
    EXPECT_EQ(results[1].tokens.size(), 20U);
    EXPECT_EQ(engine.open_sequences(), 0);
}

TEST(Generator, AStopTokenCancelsAll) {
    std::stop_source source;
    int steps = 0;
    FakeEngine engine({.on_step = [&](std::span<const Row>) {
        if (++steps == 5) source.request_stop();
    }});
    Generator generator(engine, tokenizer(), {.sequences = 1});
    const std::vector<GenerationRequest> asked{request({5}, 20), request({6}, 20)};
    const auto results = generator.run(asked, {.stop = source.get_token()});
    EXPECT_EQ(results[0].finished, FinishReason::cancelled);
    EXPECT_EQ(results[0].tokens.size(), 5U);
    EXPECT_EQ(results[1].finished, FinishReason::cancelled);
    EXPECT_THAT(results[1].tokens, IsEmpty());
}

TEST(Generator, ATimeoutEnds) {
    FakeEngine engine({.step_time = std::chrono::milliseconds(2)});
    GenerationRequest asked = request({5}, 200);
    asked.timeout = std::chrono::milliseconds(1);
    EXPECT_EQ(Generator(engine, tokenizer()).run(asked).finished, FinishReason::timeout);
}

TEST(Generator, WhatCannotBeRunIsRefused) {
    FakeEngine engine({.n_vocab = 64, .context = 20});
    const auto code = [&](const GenerationRequest& r) {
        return code_of([&] { Generator(engine, tokenizer()).run(r); });
    };
    EXPECT_EQ(code(request({}, 1)), ErrorCode::input);
    EXPECT_EQ(code(request(std::vector<int32_t>(21, 5), 1)), ErrorCode::input);
    EXPECT_EQ(code(request({64}, 1)), ErrorCode::input);
    EXPECT_EQ(code(request({-1}, 1)), ErrorCode::input);
    EXPECT_EQ(code(request({5}, -1)), ErrorCode::usage);
}

TEST(Generator, AFailedStepLeavesNothingOpen) {
    FakeEngine engine({.on_step = [](std::span<const Row>) { fail(ErrorCode::io, "fake", "broken"); }});
    Generator generator(engine, tokenizer());
    EXPECT_EQ(code_of([&] { generator.run(request({5}, 4)); }), ErrorCode::io);
    EXPECT_EQ(engine.open_sequences(), 0);
}

TEST(Generator, AConversationGoesOnWhereItWas) {
    FakeEngine engine({});
    Generator generator(engine, tokenizer(), {.keeps_sequences = true});
    GenerationRequest asked = request({5, 6, 7}, 4);
    const GenerationResult first = generator.run(asked);
    EXPECT_EQ(first.evaluated_tokens, 3);
    asked.prompt.insert(asked.prompt.end(), first.tokens.begin(), first.tokens.end());
    asked.prompt.push_back(8);
    const GenerationResult second = generator.run(asked);
    EXPECT_EQ(second.evaluated_tokens, 2);  // the reply's last token and the new one
    EXPECT_EQ(second.tokens, alone({}, asked).tokens);
    generator.forget();
    EXPECT_EQ(generator.run(asked).evaluated_tokens, 8);
}

TEST(Generator, EarlyExits) {
    for (const ExitedKv kv : {ExitedKv::propagate, ExitedKv::catch_up, ExitedKv::share}) {
        for (const bool prompt_may_exit : {false, true}) {
            GeneratorOptions options;
            options.decoding.exit = {.rule = ExitRule::fixed, .loop = 2, .kv = kv};
            options.decoding.prompt_may_exit = prompt_may_exit;
            FakeEngine engine({.loops = 3});
            Generator generator(engine, tokenizer(), options);
            const auto results =
                generator.run(std::vector<GenerationRequest>{request({5, 6, 7}, 4), request({5}, 3)});
            const int32_t first = prompt_may_exit ? 2 : 3;
            EXPECT_THAT(results[0].exits, ElementsAre(first, 2, 2, 2));
            EXPECT_THAT(results[1].exits, ElementsAre(first, 2, 2));
            EXPECT_EQ(generator.counts().exits[1] + generator.counts().exits[2], 7U);
        }
    }
    FakeEngine engine({.loops = 1});
    GeneratorOptions options;
    options.decoding.exit = {.rule = ExitRule::fixed, .loop = 1};
    EXPECT_EQ(code_of([&] { Generator(engine, tokenizer(), options); }), ErrorCode::usage);
}

// Real engines: one sequence and many give the same.
TEST(Generator, OneSequenceIsTheCaseOfOne) {
    const Model model = load_model(kModel);
    EngineOptions options{.threads = 1, .context = 64, .f32 = true};
    std::vector<GenerationRequest> requests;
    for (const char* prompt : {"The licence", "The licence is", "A text"}) {
        requests.push_back(request(tokenizer().encode(prompt, true, false), 12));
        requests.back().sampling = {.temperature = 0.7, .repetition_penalty = 1.1, .seed = 3};
    }
    const auto one = make_engine(model, options);
    options.sequences = 3;
    const auto several = make_engine(model, options);
    const auto together = Generator(*several, tokenizer()).run(requests);
    const auto after_each_other = Generator(*one, tokenizer()).run(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(together[i].tokens, after_each_other[i].tokens);
        EXPECT_EQ(together[i].text, after_each_other[i].text);
        EXPECT_GT(together[i].prefill_seconds, 0);
        EXPECT_GT(together[i].decode_tokens_per_s(), 0);
    }
}

TEST(Generator, AnEngineThatEvictsStartsAnew) {
    const auto engine =
        make_engine(load_model(kModel),
                    {.threads = 1, .context = 64, .eviction = {.policy = KvPolicy::recent, .budget = 0.5}});
    Generator generator(*engine, tokenizer(), {.keeps_sequences = true});
    GenerationRequest asked = request(tokenizer().encode("The licence is", true, false), 10);
    const auto first = generator.run(asked);
    EXPECT_EQ(generator.run(asked).evaluated_tokens, first.prompt_tokens);
    GenerationRequest longer = asked;
    longer.prompt.insert(longer.prompt.end(), first.tokens.begin(), first.tokens.end());
    longer.prompt.push_back(5);
    EXPECT_EQ(generator.run(longer).evaluated_tokens, 2);
}

}  // namespace
}  // namespace refold
