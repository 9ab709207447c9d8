#include "serve/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <thread>

#include "core/code_of.h"
#include "serve/gate.h"
#include "serve/single_stream.h"

namespace refold {
namespace {

using namespace std::chrono_literals;

GenerationRequest request(std::vector<int32_t> prompt, int64_t max_tokens) {
    GenerationRequest out;
    out.prompt = std::move(prompt);
    out.max_tokens = max_tokens;
    out.ignore_eos = true;
    return out;
}

Response expected(const FakeEngineOptions& engine_options, const GenerationRequest& request,
                  const SchedulerOptions& options = {}) {
    FakeEngineOptions quiet = engine_options;
    quiet.on_step = {};
    FakeEngine engine(quiet);
    return SingleStream(engine, options).run(request);
}

TEST(Scheduler, OneRequest) {
    FakeEngine engine({});
    Scheduler scheduler(engine, test_tokenizer(), {});
    GenerationRequest asked = request({5, 6, 7, 8, 9}, 20);
    asked.logprobs = 3;
    asked.prompt_logprobs = true;
    const Response got = collect(*scheduler.submit(asked));
    expect_same(got, expected({}, asked), "");
    ASSERT_EQ(got.logprobs.size(), 20U);
    ASSERT_EQ(got.logprobs[4].top.size(), 3U);
    EXPECT_EQ(got.logprobs[4].top[0].first, got.tokens[4]);  // greedy
    EXPECT_EQ(got.logprobs[4].top[0].second, got.logprobs[4].logprob);
    EXPECT_GT(got.logprobs[4].top[1].second, got.logprobs[4].top[2].second);
    EXPECT_EQ(got.prompt.size(), 4U);
}

TEST(Scheduler, PromptsAloneAreScored) {
    FakeEngine engine({.loops = 2});
    Scheduler scheduler(engine, test_tokenizer(), {});
    GenerationRequest asked = request({5, 6, 7, 8, 9}, 0);
    EXPECT_TRUE(collect(*scheduler.submit(asked)).prompt.empty());
    asked.prompt_logprobs = true;
    expect_same(collect(*scheduler.submit(asked)), expected({.loops = 2}, asked), "");
    asked.prompt = {5};
    const Response one = collect(*scheduler.submit(asked));
    EXPECT_EQ(one.finished, FinishReason::length);
    EXPECT_TRUE(one.prompt.empty() && one.tokens.empty());
}

TEST(Scheduler, GenerationEndsWithTheContext) {
    const FakeEngineOptions small{.context = 12};
    FakeEngine engine(small);
    Scheduler scheduler(engine, test_tokenizer(), {});
    for (const size_t prompt : {11U, 5U, 1U}) {
        const GenerationRequest asked = request(std::vector<int32_t>(prompt, 9), 1'000'000'000'000);
        const Response got = collect(*scheduler.submit(asked));
        EXPECT_EQ(got.tokens.size(), 12 - prompt);
        expect_same(got, expected(small, asked), std::to_string(prompt));
    }
}

TEST(Scheduler, EndOfGenerationIsNoToken) {
    FakeEngine engine({.n_vocab = 16});
    Scheduler scheduler(engine, test_tokenizer(), {});
    GenerationRequest asked = request({5, 6, 7}, 200);
    asked.ignore_eos = false;
    const Response got = collect(*scheduler.submit(asked));
    EXPECT_EQ(got.finished, FinishReason::stop);
    EXPECT_LT(got.tokens.size(), 200U);
    expect_same(got, expected({.n_vocab = 16}, asked), "");
}

TEST(Scheduler, StopTexts) {
    FakeEngine engine({.n_vocab = 200});
    Scheduler scheduler(engine, test_tokenizer(), {});
    GenerationRequest asked = request({50, 60, 70}, 60);
    const std::string text = collect(*scheduler.submit(asked)).text;
    ASSERT_GT(text.size(), 30U);
    asked.stop = {"nowhere", "", text.substr(20, 3), text.substr(25, 9)};
    const Response got = collect(*scheduler.submit(asked));
    EXPECT_EQ(got.finished, FinishReason::stop);
    EXPECT_EQ(got.text, text.substr(0, text.find(text.substr(20, 3))));
    expect_same(got, expected({.n_vocab = 200}, asked), "");
}

TEST(Scheduler, WhatCannotBeRunIsRefused) {
    FakeEngine engine({.loops = 2, .context = 100, .kv_tokens = 80});
    Scheduler scheduler(engine, test_tokenizer(), {});
    const auto code = [&](auto change) {
        GenerationRequest asked = request({5, 6}, 4);
        change(asked);
        return code_of([&] { scheduler.submit(asked); });
    };
    using R = GenerationRequest;
    EXPECT_EQ(code([](R& r) { r.prompt.clear(); }), ErrorCode::input);
    EXPECT_EQ(code([](R& r) { r.prompt.assign(80, 5); }), ErrorCode::input);
    EXPECT_EQ(code([](R& r) { r.prompt[1] = 64; }), ErrorCode::input);
    EXPECT_EQ(code([](R& r) { r.prompt[1] = -1; }), ErrorCode::input);
    EXPECT_EQ(code([](R& r) { r.max_tokens = -1; }), ErrorCode::usage);
    EXPECT_EQ(code([](R& r) { r.logprobs = 65; }), ErrorCode::usage);
    EXPECT_EQ(code([](R& r) { r.timeout = -1ms; }), ErrorCode::usage);
    EXPECT_EQ(code([](R& r) { r.exits = {1, 3}; }), ErrorCode::usage);
    EXPECT_EQ(code([](R& r) { r.sampling.top_p = 0; }), ErrorCode::usage);
    GenerationRequest longest = request(std::vector<int32_t>(79, 5), 4);
    longest.timeout = std::chrono::milliseconds::max();
    EXPECT_EQ(collect(*scheduler.submit(longest)).tokens.size(), 1U);
    GenerationRequest scored = request(std::vector<int32_t>(80, 5), 0);
    scored.prompt_logprobs = true;
    EXPECT_EQ(collect(*scheduler.submit(scored)).prompt.size(), 79U);
}

TEST(Scheduler, OptionsThatDoNotFitTheEngine) {
    const auto code = [](SchedulerOptions options, int32_t loops = 3) {
        FakeEngine engine({.loops = loops, .max_rows = 16});
        return code_of([&] { Scheduler(engine, test_tokenizer(), options); });
    };
    EXPECT_EQ(code({.slots = 0}), ErrorCode::usage);
    EXPECT_EQ(code({.slots = 17}), ErrorCode::usage);
    EXPECT_EQ(code({.queue = -1}), ErrorCode::usage);
    EXPECT_EQ(code({.prefill_rows = 0}), ErrorCode::usage);
    for (const double share : {0.0, 1.5, std::nan("")})
        EXPECT_EQ(code({.prefill_share = share}), ErrorCode::usage) << share;
    EXPECT_EQ(code({.timeout = 0ms}), ErrorCode::usage);
    EXPECT_EQ(code({.draft = 2}, 1), ErrorCode::usage);
    EXPECT_EQ(code({.draft = 2, .draft_loop = 3}), ErrorCode::usage);
    EXPECT_EQ(code({.draft = 2, .batching = BatchingPolicy::fixed}), ErrorCode::usage);
    ExitPolicy exit;
    exit.rule = ExitRule::fixed;
    exit.loop = 1;
    EXPECT_EQ(code({.exit = exit, .draft = 2}), ErrorCode::usage);
    EXPECT_EQ(code({.exit = exit}, 1), ErrorCode::usage);
}

TEST(Scheduler, AFullQueueRefuses) {
    Gate gate;
    FakeEngine engine({.on_step = gate.hook()});
    Scheduler scheduler(engine, test_tokenizer(), {.slots = 2, .queue = 3});
    std::vector<std::unique_ptr<Generation>> accepted;
    for (int i = 0; i < 5; ++i) {
        accepted.push_back(scheduler.submit(request({5}, 3)));
        ASSERT_NE(accepted.back(), nullptr) << i;
    }
    EXPECT_EQ(scheduler.submit(request({5}, 3)), nullptr);
    gate.open();
    for (const auto& generation : accepted) EXPECT_EQ(collect(*generation).finished, FinishReason::length);
    EXPECT_NE(scheduler.submit(request({5}, 3)), nullptr);
    EXPECT_EQ(scheduler.status().refused, 1U);
}

TEST(Scheduler, CancelledAndDropped) {
    FakeEngine engine({.step_time = 1ms});
    Scheduler scheduler(engine, test_tokenizer(), {.slots = 2});
    auto cancelled = scheduler.submit(request({5}, 200));
    auto dropped = scheduler.submit(request({6}, 200));
    auto waiting = scheduler.submit(request({7}, 200));
    auto waiting_dropped = scheduler.submit(request({7}, 200));
    ASSERT_TRUE(cancelled->next(4min) && dropped->next(4min));
    waiting->cancel();
    waiting_dropped.reset();
    EXPECT_EQ(collect(*waiting).finished, FinishReason::cancelled);
    cancelled->cancel();
    dropped.reset();
    EXPECT_EQ(collect(*cancelled).finished, FinishReason::cancelled);
    EXPECT_FALSE(cancelled->next(4min));  // at once
    EXPECT_EQ(collect(*scheduler.submit(request({5}, 3))).tokens.size(), 3U);
    EXPECT_EQ(engine.kv_tokens_used(), 0);
    EXPECT_EQ(scheduler.status().finished[FinishReason::cancelled], 4U);
}

TEST(Scheduler, Timeouts) {
    FakeEngine engine({.step_time = 1ms});
    Scheduler scheduler(engine, test_tokenizer(), {.slots = 1, .timeout = 50ms});
    GenerationRequest longer = request({5}, 20);
    longer.timeout = 4min;
    const auto all = scheduler.submit(longer);
    const auto running = scheduler.submit(request({5}, 250));
    const auto waiting = scheduler.submit(request({5}, 250));
    EXPECT_EQ(collect(*all).tokens.size(), 20U);
    const Response late = collect(*running);
    EXPECT_EQ(late.finished, FinishReason::timeout);
    EXPECT_LT(late.tokens.size(), 250U);
    EXPECT_EQ(collect(*waiting).finished, FinishReason::timeout);
}

TEST(Scheduler, ShutdownFinishesWithinItsGrace) {
    FakeEngine engine({.step_time = 1ms});
    Scheduler scheduler(engine, test_tokenizer(), {.slots = 1});
    const auto first = scheduler.submit(request({5}, 10));
    const auto second = scheduler.submit(request({6}, 10));
    scheduler.shutdown(4min);
    EXPECT_EQ(collect(*first).finished, FinishReason::length);
    EXPECT_EQ(collect(*second).finished, FinishReason::length);
    EXPECT_EQ(scheduler.submit(request({5}, 10)), nullptr);
    scheduler.shutdown(0ms);
}

TEST(Scheduler, ShutdownEndsWhatIsLeft) {
    FakeEngine engine({.step_time = 1ms});
    std::unique_ptr<Generation> running, waiting;
    {
        Scheduler scheduler(engine, test_tokenizer(), {.slots = 1});
        running = scheduler.submit(request({5}, 250));
        waiting = scheduler.submit(request({6}, 250));
        ASSERT_TRUE(running->next(4min));
    }
    EXPECT_EQ(collect(*running).finished, FinishReason::shutdown);
    EXPECT_EQ(collect(*waiting).finished, FinishReason::shutdown);
    EXPECT_EQ(engine.open_sequences(), 0);
}

TEST(Scheduler, AnEngineErrorEndsWhatWasInTheStep) {
    std::atomic<bool> broken = false;
    FakeEngine engine({.on_step = [&](std::span<const Row>) {
        if (broken) fail(ErrorCode::internal, "fake", "broken on purpose");
    }});
    Scheduler scheduler(engine, test_tokenizer(), {.slots = 2});
    broken = true;
    const auto first = scheduler.submit(request({5}, 250));
    const Response got = collect(*first);
    EXPECT_EQ(got.finished, FinishReason::error);
    EXPECT_THAT(got.error, testing::HasSubstr("broken on purpose"));
    broken = false;
    const GenerationRequest asked = request({5, 6}, 10);
    expect_same(collect(*scheduler.submit(asked)), expected({}, asked), "");
    EXPECT_EQ(engine.open_sequences(), 0);
}

TEST(Scheduler, FirstComeFirstServedAlsoWhenTheCacheIsFull) {
    FakeEngine engine({.kv_tokens = 100, .step_time = 200us});
    Scheduler scheduler(engine, test_tokenizer(), {.slots = 4});
    const auto first = scheduler.submit(request({5}, 60));
    const auto large = scheduler.submit(request({6}, 90));  // waits for the first one
    const auto small = scheduler.submit(request({7}, 5));   // would fit beside it
    ASSERT_EQ(collect(*first).tokens.size(), 60U);
    ASSERT_TRUE(small->next(4min));
    EXPECT_TRUE(large->next(0ms));
    EXPECT_GT(scheduler.status().starved, 30U);
}

// No more requests are submitted, so a slot may be free only when no request waits.
TEST(Scheduler, SlotsAreBusyWhileRequestsWait) {
    for (const int32_t loops : {1, 3}) {
        Gate gate;
        const auto held = gate.hook();
        FakeEngine* engine = nullptr;
        Scheduler* scheduler = nullptr;
        std::atomic<int64_t> steps = 0;
        FakeEngineOptions setting{.loops = loops, .kv_tokens = 100'000};
        setting.on_step = [&](std::span<const Row> rows) {
            held(rows);
            if (++steps == 1) return;
            std::set<int32_t> sequences;
            for (const Row& row : rows) sequences.insert(row.sequence);
            const auto running = static_cast<int64_t>(sequences.size());
            if (scheduler->status().waiting > 0) {
                EXPECT_EQ(engine->open_sequences(), 5);
            }
            if (rows.size() < 64) {  // rows are left out only if the step is full
                EXPECT_EQ(running, engine->open_sequences());
            }
        };
        FakeEngine fake(setting);
        engine = &fake;
        SchedulerOptions options{.slots = 5, .queue = 200};
        options.exit.kv = ExitedKv::catch_up;
        if (loops > 1) {
            options.exit.rule = ExitRule::probability;
            options.exit.thresholds = {0.2};
        }
        Scheduler real(fake, test_tokenizer(), options);
        scheduler = &real;
        std::vector<std::unique_ptr<Generation>> all;
        for (int32_t i = 0; i < 100; ++i)
            all.push_back(real.submit(request({i % 64, 3, 4, i % 7}, 1 + i * 7 % 40)));
        gate.open();
        for (const auto& generation : all) EXPECT_EQ(collect(*generation).finished, FinishReason::length);
        EXPECT_GT(steps, 100);
        EXPECT_LE(real.status().starved, 1U);  // the first step, while requests arrived
    }
}

TEST(Scheduler, PromptsShareStepsWithinTheirRows) {
    Gate gate;
    const auto held = gate.hook();
    std::vector<std::map<int32_t, int64_t>> rows_of;  // by step and sequence
    FakeEngine engine({.on_step = [&](std::span<const Row> rows) {
        held(rows);
        rows_of.emplace_back();
        for (const Row& row : rows) ++rows_of.back()[row.sequence];
    }});
    Scheduler scheduler(engine, test_tokenizer(), {.slots = 4, .prefill_rows = 10});
    const auto first = scheduler.submit(request(std::vector<int32_t>(2, 5), 6));
    gate.wait_until_reached();
    const auto second = scheduler.submit(request(std::vector<int32_t>(14, 6), 6));
    const auto third = scheduler.submit(request(std::vector<int32_t>(7, 6), 6));
    gate.open();
    collect(*first), collect(*second), collect(*third);
    scheduler.shutdown(0ms);
    ASSERT_GT(rows_of.size(), 3U);
    // Half is for the one that came first; what the shorter one leaves is, too.
    EXPECT_THAT(rows_of[1],
                testing::ElementsAre(testing::Pair(7, 1), testing::Pair(8, 5), testing::Pair(9, 5)));
    EXPECT_THAT(rows_of[2],
                testing::ElementsAre(testing::Pair(7, 1), testing::Pair(8, 8), testing::Pair(9, 2)));
    EXPECT_THAT(rows_of[3],
                testing::ElementsAre(testing::Pair(7, 1), testing::Pair(8, 1), testing::Pair(9, 1)));
}

// A prompt that takes long waits while another request generates.
TEST(Scheduler, PromptsTakeTheirShareOfTheTime) {
    constexpr int64_t kTokens = 40;
    Gate gate;
    int64_t steps = 0;
    std::vector<int64_t> with_prompt;
    FakeEngine engine({.on_step = [&, held = gate.hook()](std::span<const Row> rows) {
        held(rows);
        ++steps;
        if (rows.size() <= 2) return;
        with_prompt.push_back(steps);
        std::this_thread::sleep_for(50ms);
    }});
    Scheduler scheduler(engine, test_tokenizer(), {.slots = 2, .prefill_rows = 10, .prefill_share = 0.01});
    const auto first = scheduler.submit(request({5}, kTokens));
    gate.wait_until_reached();
    const auto second = scheduler.submit(request(std::vector<int32_t>(30, 6), 6));
    gate.open();
    collect(*first), collect(*second);
    scheduler.shutdown(0ms);
    EXPECT_EQ(with_prompt, (std::vector<int64_t>{2, kTokens + 1, kTokens + 2}));
}

// A short prompt is run at once, however many long ones came before it.
TEST(Scheduler, ShortPromptsPassLongOnes) {
    Gate begin, later;
    int steps = 0;
    FakeEngine engine({.on_step = [&, first = begin.hook(), later = later.hook()](std::span<const Row> rows) {
        ++steps;
        if (steps == 1) first(rows);
        if (steps == 30) later(rows);  // when the short one has ended, and no long prompt has been read
    }});
    Scheduler scheduler(engine, test_tokenizer(), {.slots = 8, .prefill_rows = 10});
    const auto first = scheduler.submit(request({5}, 60));
    begin.wait_until_reached();
    std::vector<std::unique_ptr<Generation>> longs;
    for (int32_t i = 0; i < 4; ++i)
        longs.push_back(scheduler.submit(request(std::vector<int32_t>(200, 6 + i), 5)));
    const auto small = scheduler.submit(request({7, 8, 9}, 20));
    begin.open();
    later.wait_until_reached();
    const auto event = small->next(0ms);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->finished, FinishReason::length);
    for (const auto& one : longs) EXPECT_FALSE(one->next(0ms));
    later.open();
    for (const auto& one : longs) EXPECT_EQ(collect(*one).finished, FinishReason::length);
}

// The slots go to clients in turn.
TEST(Scheduler, OneClientDoesNotFillTheSlots) {
    Gate begin, later;
    int steps = 0;
    FakeEngine engine({.on_step = [&, first = begin.hook(), later = later.hook()](std::span<const Row> rows) {
        ++steps;
        if (steps == 1) first(rows);
        if (steps == 60) later(rows);  // when the other client's has ended, and 16 of the first one's wait
    }});
    Scheduler scheduler(engine, test_tokenizer(), {.slots = 2});
    std::vector<std::unique_ptr<Generation>> many;
    for (int32_t i = 0; i < 20; ++i) many.push_back(scheduler.submit(request({5 + i}, 30), 1));
    begin.wait_until_reached();
    const auto other = scheduler.submit(request({7, 8}, 5), 2);
    begin.open();
    EXPECT_EQ(collect(*other).finished, FinishReason::length);
    EXPECT_FALSE(many.back()->next(0ms));
    later.open();
    for (const auto& one : many) EXPECT_EQ(collect(*one).finished, FinishReason::length);
}

TEST(Scheduler, FixedBatchesWaitForTheirLast) {
    std::vector<std::set<int32_t>> sequences;  // by step
    bool mixed = false;
    FakeEngine engine({.loops = 2, .on_step = [&](std::span<const Row> rows) {
                           sequences.emplace_back();
                           std::set<int32_t> loops;
                           for (const Row& row : rows) {
                               sequences.back().insert(row.sequence);
                               loops.insert(row.loop);
                           }
                           mixed = mixed || loops.size() > 1;
                       }});
    SchedulerOptions options{.slots = 3, .batching = BatchingPolicy::fixed};
    options.exit.rule = ExitRule::probability;
    options.exit.thresholds = {0.2};
    std::vector<std::unique_ptr<Generation>> all;
    {
        Scheduler scheduler(engine, test_tokenizer(), options);
        std::vector<GenerationRequest> asked;
        for (int32_t i = 0; i < 7; ++i) asked.push_back(request({i, 3, 4}, 3 + 5 * i % 11));
        for (const auto& one : asked) all.push_back(scheduler.submit(one));
        for (size_t i = 0; i < all.size(); ++i)
            expect_same(collect(*all[i]), expected({.loops = 2}, asked[i], options), std::to_string(i));
        scheduler.shutdown(0ms);
    }
    EXPECT_FALSE(mixed);  // lockstep
    for (const auto& step : sequences) {
        const int32_t batch = (*step.begin() - 7) / 3;
        for (const int32_t id : step) EXPECT_EQ((id - 7) / 3, batch);
    }
    EXPECT_EQ(sequences.front().size(), 3U);
}

TEST(Scheduler, Counts) {
    FakeEngine engine({.loops = 3});
    SchedulerOptions options{.slots = 2};
    options.exit.rule = ExitRule::fixed;
    options.exit.loop = 2;
    Scheduler scheduler(engine, test_tokenizer(), options);
    EXPECT_EQ(scheduler.status().slots, 2);
    const Response got = collect(*scheduler.submit(request({5, 6, 7}, 10)));
    EXPECT_EQ(got.exits, (std::vector<int32_t>{3, 2, 2, 2, 2, 2, 2, 2, 2, 2}));
    scheduler.shutdown(0ms);
    const SchedulerStatus status = scheduler.status();
    EXPECT_EQ(status.running, 0);
    EXPECT_EQ(status.prompt_tokens, 3U);
    EXPECT_EQ(status.generated_tokens, 10U);
    EXPECT_EQ(status.exits, (std::vector<uint64_t>{0, 9, 1}));
    EXPECT_EQ(status.steps, 3 + 2 * 9U);
    EXPECT_EQ(status.rows, 3 * 3 + 2 * 9U);
    EXPECT_EQ(status.kv_tokens, 2048);
    EXPECT_EQ(status.kv_tokens_used, 0);
    EXPECT_EQ(status.finished.at(FinishReason::length), 1U);
    const auto sum = [](const Histogram& h) {
        return std::accumulate(h.counts.begin(), h.counts.end(), size_t{0});
    };
    EXPECT_EQ(sum(status.first_token), 1U);
    EXPECT_EQ(sum(status.between_tokens), 9U);
    EXPECT_EQ(status.first_token.counts.size(), status.first_token.bounds.size() + 1);
}

// What an earlier sequence left in the KV cache is not run again, until the room is needed.
TEST(Scheduler, PromptsThatBeginAlikeAreRunOnce) {
    int64_t rows = 0;
    FakeEngine engine({.kv_tokens = 400,
                       .on_step = [&](std::span<const Row> r) { rows += static_cast<int64_t>(r.size()); }});
    FakeEngine alone({});
    SchedulerOptions options{.slots = 2};
    options.prefixes = true;
    SingleStream reference(alone, options);
    Scheduler scheduler(engine, test_tokenizer(), options);
    GenerationRequest request;
    for (int32_t i = 0; i < 100; ++i) request.prompt.push_back(i % 50);
    request.max_tokens = 5;
    request.ignore_eos = true;
    const auto run = [&] {
        rows = 0;
        Response got = collect(*scheduler.submit(request));
        expect_same(got, reference.run(request), "");
        return got;
    };
    const Response first = run();
    EXPECT_EQ(rows, 104);
    run();
    EXPECT_EQ(rows, 5);  // the last token of the prompt, and the generated ones
    // The next turn of a conversation: the answer is in the cache, too.
    request.prompt.insert(request.prompt.end(), first.tokens.begin(), first.tokens.end());
    request.prompt.insert(request.prompt.end(), {7, 8, 9});
    run();
    EXPECT_EQ(rows, 4 + 4);
    EXPECT_EQ(scheduler.status().known_tokens, 99U + 104U);
    EXPECT_EQ(scheduler.status().prompt_tokens, 100U + 100U + 108U);
    // Scored prompts are run whole.
    request.prompt_logprobs = true;
    request.logprobs = 0;
    run();
    EXPECT_EQ(rows, 112);
    request.prompt_logprobs = false;
    for (int32_t i = 0; i < 10; ++i) {  // more than the cache holds
        request.prompt.front() = 50 + i;
        run();
    }
    scheduler.shutdown(std::chrono::milliseconds(0));
    EXPECT_EQ(engine.open_sequences(), 0);
}

// Conversations in turn, whose prompts begin alike and reserve whole contexts: none takes another one's
// place while the cache has room for what all of them have.
TEST(Scheduler, ConversationsKeepWhatTheyHave) {
    int64_t rows = 0;
    FakeEngine engine({.context = 256,
                       .kv_tokens = 560,
                       .script = {9, 8, 7},
                       .script_end = test_tokenizer().eos().value(),
                       .on_step = [&](std::span<const Row> r) { rows += static_cast<int64_t>(r.size()); }});
    SchedulerOptions options{.slots = 2};
    options.prefixes = true;
    Scheduler scheduler(engine, test_tokenizer(), options);
    constexpr int32_t kConversations = 4, kHeader = 20, kOwn = 30;
    std::vector<std::vector<int32_t>> texts(kConversations);
    for (int32_t turn = 0; turn < 3; ++turn) {
        for (int32_t c = 0; c < kConversations; ++c) {
            auto& text = texts[static_cast<size_t>(c)];
            for (int32_t i = 0; turn == 0 && i < kHeader; ++i) text.push_back(i);
            for (int32_t i = 0; i < (turn == 0 ? kOwn : 5); ++i) text.push_back(20 + c);
            GenerationRequest request;
            request.prompt = text;
            request.max_tokens = 256 - static_cast<int64_t>(text.size());
            rows = 0;
            const Response got = collect(*scheduler.submit(std::move(request)));
            EXPECT_EQ(got.finished, FinishReason::stop);
            text.insert(text.end(), got.tokens.begin(), got.tokens.end());
            // What is new, and what was generated but for the end.
            const int32_t prompt = turn > 0 ? 5 : c == 0 ? kHeader + kOwn : kOwn;
            EXPECT_EQ(rows, prompt + 3) << turn << ", " << c;
        }
    }
}

// Prompts that come together and begin alike are read once, too; one that waits for another goes on when that
// one is left.
TEST(Scheduler, PromptsOfOneMomentAreRunOnce) {
    for (const bool left : {false, true}) {
        Gate begin, within;
        int64_t steps = 0, rows = 0;
        FakeEngine engine(
            {.on_step = [&, first = begin.hook(), within = within.hook()](std::span<const Row> r) {
                ++steps;
                if (steps == 1) first(r);
                if (steps == 3) within(r);  // when 40 tokens are read
                rows += static_cast<int64_t>(r.size());
            }});
        FakeEngine alone({});
        SchedulerOptions options{.slots = 4, .prefill_rows = 40};
        options.prefixes = true;
        SingleStream reference(alone, options);
        Scheduler scheduler(engine, test_tokenizer(), options);
        const auto other = scheduler.submit(request({60}, 2));
        begin.wait_until_reached();
        std::vector<GenerationRequest> requests;
        std::vector<std::unique_ptr<Generation>> running;
        const auto add = [&] {
            std::vector<int32_t> prompt(100, 7);
            prompt.insert(prompt.end(), {static_cast<int32_t>(requests.size()), 1, 2});
            // The first one ends with the step that reads its prompt.
            requests.push_back(request(std::move(prompt), requests.empty() ? 1 : 5));
            running.push_back(scheduler.submit(requests.back()));
        };
        add();
        add();
        begin.open();
        within.wait_until_reached();
        add();
        if (left) running.front().reset();
        within.open();
        collect(*other);
        for (size_t i = left ? 1 : 0; i < requests.size(); ++i)
            expect_same(collect(*running[i]), reference.run(requests[i]), "");
        scheduler.shutdown(0ms);
        if (left) continue;
        EXPECT_EQ(rows, 2 + 103 + 3 + 23 + 2 * 4);
        EXPECT_EQ(scheduler.status().known_tokens, 100U + 80U);
    }
}

}  // namespace
}  // namespace refold
