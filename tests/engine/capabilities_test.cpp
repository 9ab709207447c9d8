// What engines say that they can do, what they then do, and which options do not go together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/code_of.h"
#include "engine/compare.h"
#include "engine/expression_models.h"
#include "engine/looped_models.h"
#include "engine/synthetic_models.h"

namespace refold {
namespace {

constexpr int64_t kContext = 16;

std::vector<EngineKind> kinds() {
    return has_torch_engine() ? std::vector{EngineKind::ggml, EngineKind::torch}
                              : std::vector{EngineKind::ggml};
}

EngineOptions options_of(EngineKind kind = EngineKind::ggml) {
    return {.kind = kind, .threads = 1, .context = kContext, .chunk = 6, .f32 = true};
}

Model decoder() { return synthetic_model(synthetic::decoder()); }

// ---- capabilities ----

TEST(Capabilities, OfOneSequence) {
    const Model model = decoder();
    for (const EngineKind kind : kinds()) {
        const auto engine = make_engine(model, options_of(kind));
        const Capabilities& can = engine->capabilities();
        EXPECT_EQ(can.family, model.config.family);
        EXPECT_EQ(can.sequences, 1);
        EXPECT_EQ(can.context, kContext);
        EXPECT_EQ(can.kv_tokens, kContext);
        EXPECT_EQ(can.max_rows, 6);
        EXPECT_EQ(can.n_vocab, model.config.n_vocab);
        EXPECT_EQ(can.n_embd, model.config.n_embd);
        EXPECT_EQ(can.threads, 1);
        EXPECT_EQ(can.loops, 1);
        EXPECT_TRUE(can.causal);
        EXPECT_FALSE(can.range.has_value());
        EXPECT_TRUE(can.takes_tokens());
        EXPECT_TRUE(can.logits);
        EXPECT_FALSE(can.observed);
        EXPECT_FALSE(can.evicts);
        EXPECT_FALSE(can.stretches_rotation);
        EXPECT_TRUE(can.exact_truncation);
    }
}

TEST(Capabilities, OfSeveralSequences) {
    const Model model = decoder();
    EngineOptions options = options_of();
    options.sequences = 3;
    const auto three = make_engine(model, options);
    EXPECT_EQ(three->capabilities().sequences, 3);
    EXPECT_EQ(three->capabilities().kv_tokens, 3 * kContext);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(three->open(1).has_value());
    EXPECT_FALSE(three->open(1).has_value());
    three->close(1);
    EXPECT_TRUE(three->open(1).has_value());

    options.sequences = 0;
    EXPECT_EQ(make_engine(model, options)->capabilities().kv_tokens, 8 * kContext);
    options.kv_tokens = 40;
    const auto any = make_engine(model, options);
    EXPECT_EQ(any->capabilities().kv_tokens, 40);
    EXPECT_EQ(any->capabilities().sequences, 40);
}

TEST(Capabilities, OfLoops) {
    EngineOptions options = options_of();
    options.by_loop = true;
    const auto engine = make_engine(looped_model("llama"), options);
    EXPECT_EQ(engine->capabilities().loops, 3);
    EXPECT_EQ(engine->capabilities().sequences, 1);
    EXPECT_EQ(engine->capabilities().kv_tokens, kContext);
    EXPECT_TRUE(engine->open(kContext).has_value());
    EXPECT_FALSE(engine->open(1).has_value());
    EXPECT_EQ(make_engine(decoder(), options)->capabilities().loops, 1);
    options.by_loop = false;
    EXPECT_EQ(make_engine(looped_model("llama"), options)->capabilities().loops, 1);
}

TEST(Capabilities, OfEncoders) {
    for (const EngineKind kind : kinds()) {
        const auto engine = make_engine(synthetic_model(synthetic::encoder()), options_of(kind));
        EXPECT_FALSE(engine->capabilities().causal);
        EXPECT_EQ(engine->capabilities().max_rows, kContext);
        EXPECT_TRUE(engine->capabilities().logits);
        EXPECT_FALSE(
            make_engine(synthetic_model(synthetic::headless()), options_of(kind))->capabilities().logits);
    }
}

TEST(Capabilities, OfRangesAndObservers) {
    const Model model = decoder();
    EngineOptions options = options_of();
    options.range = LayerRange{0, 1};
    const Capabilities begins = make_engine(model, options)->capabilities();
    EXPECT_EQ(begins.range->last, 1U);
    EXPECT_TRUE(begins.takes_tokens());
    EXPECT_FALSE(begins.logits);
    options.range = LayerRange{1, 2};
    EXPECT_FALSE(make_engine(model, options)->capabilities().takes_tokens());
    options.observer = std::make_shared<Observer>();
    EXPECT_TRUE(make_engine(model, options)->capabilities().observed);
}

TEST(Capabilities, OfEviction) {
    EngineOptions options = options_of();
    options.eviction = {.policy = KvPolicy::h2o, .budget = 0.5};
    const Capabilities can = make_engine(decoder(), options)->capabilities();
    EXPECT_TRUE(can.evicts);
    EXPECT_FALSE(can.exact_truncation);
    EXPECT_EQ(can.max_rows, 2);
    options.eviction.budget = 1;
    EXPECT_FALSE(make_engine(decoder(), options)->capabilities().evicts);
}

TEST(Capabilities, OfStretchedRotations) {
    const Model model = synthetic_model(synthetic::dynamic_rotation());
    for (const EngineKind kind : kinds()) {
        EngineOptions options = options_of(kind);
        const Capabilities stretched = make_engine(model, options)->capabilities();
        EXPECT_TRUE(stretched.stretches_rotation);
        EXPECT_FALSE(stretched.exact_truncation);
        options.context = model.config.rope.original_context;
        const Capabilities never = make_engine(model, options)->capabilities();
        EXPECT_FALSE(never.stretches_rotation);
        EXPECT_TRUE(never.exact_truncation);
    }
}

TEST(Capabilities, TruncationIsExactWhereTheySaySo) {
    for (const auto& [name, model, input] : synthetic_models()) {
        if (!model.config.causal) continue;
        for (const EngineKind kind : kinds()) {
            SingleSequence sequence(model, options_of(kind));
            // Longer than the context that a rotation is made for, then within it.
            const auto tokens = random_tokens(10, model.config.n_vocab, 1);
            sequence.evaluate(tokens);
            sequence.truncate(4);
            const auto continued = sequence.evaluate(std::span(tokens).subspan(4, 1));
            const std::vector<float> logits(continued.begin(), continued.end());
            SingleSequence fresh(model, options_of(kind));
            const auto expected = fresh.evaluate(std::span(tokens).first(5));
            if (sequence.capabilities().exact_truncation) {
                EXPECT_LE(scaled_difference(logits, expected), 1e-4) << name;
            } else {
                EXPECT_GT(scaled_difference(logits, expected), 1e-4) << name;
            }
        }
    }
}

// ---- options that do not go together ----

struct Refusal {
    std::string name;
    Model model;
    std::function<void(EngineOptions&)> change;
    ErrorCode code;
    std::string message;
};

std::vector<Refusal> refusals() {
    const auto several = [](EngineOptions& o) { o.sequences = 0; };
    const auto by_loop = [](EngineOptions& o) { o.by_loop = true; };
    const auto observes = [](EngineOptions& o) { o.observer = std::make_shared<Observer>(); };
    const auto with = [](auto... changes) { return [=](EngineOptions& o) { (changes(o), ...); }; };
    const auto range = [](size_t first, size_t last) {
        return [=](EngineOptions& o) { o.range = LayerRange{first, last}; };
    };
    const auto evicts = [](EngineOptions& o) { o.eviction = {.policy = KvPolicy::h2o, .budget = 0.5}; };
    const auto torch = [](EngineOptions& o) { o.kind = EngineKind::torch; };
    const auto unsupported = ErrorCode::unsupported, usage = ErrorCode::usage;
    const Model plain = decoder(), looped = looped_model("llama"),
                encoder = synthetic_model(synthetic::encoder()),
                stretched = synthetic_model(synthetic::dynamic_rotation());
    ExpressionBuilder shares("llama");
    shares.share_probabilities(2, 0);
    ExpressionBuilder prefixed("llama");
    prefixed.prefix(2);
    Model shapes = plain;
    shapes.shapes_only = true;
    return {
        {"no weights", shapes, [](EngineOptions&) {}, ErrorCode::input, "only config.json"},
        {"threads", plain, [](EngineOptions& o) { o.threads = 513; }, usage, "threads must be"},
        {"context", plain, [](EngineOptions& o) { o.context = -1; }, usage, "context out of range"},
        {"learned positions", synthetic_model(synthetic::learned_positions()),
         [](EngineOptions& o) { o.context = 1000; }, usage, "learned positions"},
        {"chunk", plain, [](EngineOptions& o) { o.chunk = 0; }, usage, "chunk must be at least 1"},
        {"sequences", plain, [](EngineOptions& o) { o.sequences = -1; }, usage,
         "sequences must be at least 0"},
        {"negative KV tokens", plain, with(several, [](EngineOptions& o) { o.kv_tokens = -1; }), usage,
         "KV tokens out of range"},
        {"too many KV tokens", plain, with(several, [](EngineOptions& o) { o.kv_tokens = int64_t{1} << 31; }),
         usage, "KV tokens must be at most"},
        {"too many contexts", plain, [](EngineOptions& o) { o.sequences = int64_t{1} << 40; }, usage,
         "sequences of 16 tokens"},
        {"KV tokens of one sequence", plain, [](EngineOptions& o) { o.kv_tokens = 32; }, usage,
         "the room of several sequences"},
        {"several, torch", plain, with(several, torch), unsupported, "--engine ggml"},
        {"several, range", plain, with(several, range(0, 1)), unsupported, "ranges"},
        {"several, observer", plain, with(several, observes), unsupported, "observers"},
        {"several, encoder", encoder, several, unsupported, "is an encoder"},
        {"several, eviction", plain, with(several, evicts), unsupported, "--kv-policy"},
        {"several, stretched", stretched, several, unsupported, "--context of at most that"},
        {"loops, torch", looped, with(by_loop, torch), unsupported, "steps by loop: not by the torch engine"},
        {"loops, range", looped, with(by_loop, range(0, 1)), unsupported, "steps by loop: neither ranges"},
        {"loops, observer", looped, with(by_loop, observes), unsupported, "observers"},
        {"loops, encoder", encoder, by_loop, unsupported, "is an encoder"},
        {"loops, eviction", looped, with(by_loop, evicts), unsupported, "--kv-policy"},
        {"torch, probabilities", plain,
         [](EngineOptions& o) {
             o.kind = EngineKind::torch;
             const auto observer = std::make_shared<Observer>();
             observer->taps = {{0, Tap::probabilities}};
             o.observer = observer;
         },
         unsupported, "by the ggml engine"},
        {"torch, eviction", plain, with(torch, evicts), unsupported, "needs the ggml engine"},
        {"range backwards", plain, range(2, 1), usage, "layers 2 to 1"},
        {"range beyond the model", plain, range(0, 99), usage, "layers 0 to 99"},
        {"range without a source", shares.finish(), range(1, 3), ErrorCode::internal,
         "the source of its attention"},
        {"eviction, range", plain, with(evicts, range(0, 1)), unsupported, "ranges and observers"},
        {"eviction, observer", plain, with(evicts, observes), unsupported, "ranges and observers"},
        {"eviction, encoder", encoder, evicts, unsupported, "needs a decoder"},
        {"eviction, ALiBi", synthetic_model(synthetic::alibi()), evicts, unsupported, "ALiBi"},
        {"eviction, prefix", prefixed.finish(), evicts, unsupported, "prefix"},
        {"eviction, budget", plain,
         [](EngineOptions& o) { o.eviction = {.policy = KvPolicy::h2o, .budget = 0}; }, usage,
         "KV budget must be above 0"},
        {"eviction, no policy", plain, [](EngineOptions& o) { o.eviction.budget = 0.5; }, usage,
         "needs a policy"},
        {"eviction, recent", plain,
         [](EngineOptions& o) { o.eviction = {.policy = KvPolicy::h2o, .budget = 0.5, .recent = 1.5}; },
         usage, "recent part"},
        {"eviction, sinks", plain,
         [](EngineOptions& o) { o.eviction = {.policy = KvPolicy::recent, .budget = 0.5, .sinks = -1}; },
         usage, "sinks"},
        {"eviction, too few rows", plain,
         [](EngineOptions& o) { o.eviction = {.policy = KvPolicy::h2o, .budget = 0.05}; }, usage, "too few"},
    };
}

TEST(Capabilities, OptionsThatDoNotGoTogether) {
    for (const Refusal& refusal : refusals()) {
        SCOPED_TRACE(refusal.name);
        EngineOptions options = options_of();
        refusal.change(options);
        EXPECT_EQ(code_of([&] { make_engine(refusal.model, options); }, refusal.message), refusal.code);
    }
}

TEST(Capabilities, ObstaclesAreWhatMakeEngineRefuses) {
    for (const Refusal& refusal : refusals()) {
        if (!refusal.name.starts_with("several")) continue;
        EngineOptions options = options_of();
        refusal.change(options);
        EXPECT_THAT(obstacle_to_several_sequences(refusal.model, options),
                    testing::HasSubstr(refusal.message));
    }
    EXPECT_EQ(obstacle_to_several_sequences(decoder(), options_of()), "");
}

// ---- steps of an engine of one sequence ----

TEST(OneSequence, AnyRowsAskForLogits) {
    const Model model = decoder();
    const auto tokens = random_tokens(6, model.config.n_vocab, 1);
    const auto n_vocab = static_cast<size_t>(model.config.n_vocab);
    for (const EngineKind kind : kinds()) {
        for (const bool observed : {false, true}) {
            EngineOptions options = options_of(kind);
            if (observed && kind == EngineKind::torch) continue;
            if (observed) {
                auto observer = std::make_shared<Observer>();
                observer->taps = {{model.topology.layers.size() - 1, Tap::ffn_output}};
                observer->see = [](const Tapped&) {};
                options.observer = observer;
            }
            const auto expected = all_logits(model, tokens, options_of(kind));
            const auto engine = make_engine(model, options);
            for (unsigned wanted = 0; wanted < 64; wanted += 3) {
                const int32_t id = engine->open(kContext).value();
                std::vector<Row> rows;
                std::vector<float> of_wanted;
                for (size_t t = 0; t < tokens.size(); ++t) {
                    const bool asks = (wanted >> t & 1U) != 0;
                    rows.push_back({.sequence = id,
                                    .position = static_cast<int64_t>(t),
                                    .token = tokens[t],
                                    .logits = asks});
                    const auto row = std::span(expected).subspan(t * n_vocab, n_vocab);
                    if (asks) of_wanted.insert(of_wanted.end(), row.begin(), row.end());
                }
                const StepOutput result = engine->step({.rows = rows});
                EXPECT_TRUE(result.hidden.empty());
                EXPECT_LE(scaled_difference(result.logits, of_wanted), 1e-4) << wanted << " " << observed;
                engine->close(id);
            }
        }
    }
}

TEST(OneSequence, StepsOutsideTheCapabilitiesChangeNothing) {
    const Model model = decoder();
    for (const EngineKind kind : kinds()) {
        const auto engine = make_engine(model, options_of(kind));
        EXPECT_EQ(engine->kv_tokens_used(), 0);
        EXPECT_EQ(code_of([&] { engine->open(kContext + 1); }, "1 to 16"), ErrorCode::usage);
        EXPECT_EQ(code_of([&] { engine->open(0); }, "1 to 16"), ErrorCode::usage);
        EXPECT_EQ(code_of([&] { engine->close(0); }, "not open"), ErrorCode::internal);
        const int32_t id = engine->open(kContext).value();
        EXPECT_EQ(engine->kv_tokens_used(), kContext);
        EXPECT_FALSE(engine->open(1).has_value());
        const std::vector<float> residual(static_cast<size_t>(model.config.n_embd));
        const std::vector<int32_t> ones(1, 1);
        const auto refuses = [&](Row row, const std::string& text, ErrorCode code = ErrorCode::internal) {
            EXPECT_EQ(code_of([&] { engine->step({.rows = {&row, 1}}); }, text), code);
        };
        refuses({.sequence = id, .token = 17}, "vocabulary of 17", ErrorCode::input);
        refuses({.sequence = id}, "vocabulary of 17", ErrorCode::input);
        refuses({.sequence = id + 1, .token = 1}, "not open");
        refuses({.sequence = id, .position = 1, .token = 1}, "in their order");
        refuses({.sequence = id, .loop = 1, .token = 1}, "all layers");
        refuses({.sequence = id, .token = 1, .work = Row::Work::keys_only}, "all layers");
        const std::vector<Row> many(7, {.sequence = id, .token = 1});
        EXPECT_EQ(code_of([&] { engine->step({.rows = many}); }, "at most 6 rows"), ErrorCode::internal);
        const Row row{.sequence = id, .token = 1, .logits = true};
        const std::span<const Row> one(&row, 1);
        EXPECT_EQ(code_of([&] { engine->step({.rows = one, .residual = residual}); }, "residual"),
                  ErrorCode::internal);
        EXPECT_EQ(code_of([&] { engine->step({.rows = one, .mask = ones}); }, "for encoders"),
                  ErrorCode::internal);
        EXPECT_EQ(code_of([&] { engine->truncate(id, 1); }, "has 0 tokens, not 1"), ErrorCode::internal);
        EXPECT_EQ(code_of([&] { engine->copy(id, id, 0); }, "to itself"), ErrorCode::internal);
        EXPECT_EQ(code_of([&] { engine->copy(id, id + 1, 0); }, "not open"), ErrorCode::internal);
        EXPECT_EQ(code_of([&] { engine->share(id, 0, 1); }, "one loop"), ErrorCode::internal);
        EXPECT_TRUE(engine->step({}).logits.empty());
        const auto expected = all_logits(model, std::vector<int32_t>{1}, options_of(kind));
        EXPECT_LE(scaled_difference(engine->step({.rows = one}).logits, expected), 1e-4);
        engine->close(id);
    }
    EngineOptions options = options_of();
    options.range = LayerRange{0, 1};
    const auto range = make_engine(model, options);
    Row row{.sequence = range->open(kContext).value(), .token = 1, .logits = true};
    EXPECT_EQ(code_of([&] { range->step({.rows = {&row, 1}}); }, "no logits"), ErrorCode::internal);
    row.logits = false;
    EXPECT_EQ(range->step({.rows = {&row, 1}}).hidden.size(), static_cast<size_t>(model.config.n_embd));
    options.range = LayerRange{1, 2};
    const auto later = make_engine(model, options);
    row.sequence = later->open(kContext).value();
    EXPECT_EQ(code_of([&] { later->step({.rows = {&row, 1}}); }, "residual"), ErrorCode::internal);
}

// ---- one sequence of an engine ----

TEST(SingleSequence, OfAnEngineOfSeveral) {
    const Model model = decoder();
    const auto tokens = random_tokens(11, model.config.n_vocab, 1);
    const auto expected = all_logits(model, tokens, options_of());
    const auto n_vocab = static_cast<size_t>(model.config.n_vocab);
    EngineOptions options = options_of();
    options.sequences = 2;
    const auto engine = make_engine(model, options);
    {
        SingleSequence first(*engine), second(*engine);
        EXPECT_EQ(code_of([&] { SingleSequence third(*engine); }, "no room"), ErrorCode::internal);
        for (size_t t = 0; t < tokens.size(); ++t) {
            const auto row = std::span(expected).subspan(t * n_vocab, n_vocab);
            EXPECT_LE(scaled_difference(first.evaluate({&tokens[t], 1}), row), 1e-4) << t;
            if (t == 7) {
                const auto eight = second.evaluate(std::span(tokens).first(8));
                EXPECT_LE(scaled_difference(eight, row), 1e-4);
            }
        }
        EXPECT_EQ(engine->kv_tokens_used(), 2 * kContext);
    }
    EXPECT_EQ(engine->kv_tokens_used(), 0);
}

TEST(SingleSequence, WhatItsEngineCannot) {
    const auto tokens = random_tokens(3, 17, 1);
    const auto ignore = [](size_t, std::span<const float>) {};
    SingleSequence encoder(synthetic_model(synthetic::encoder()), options_of());
    EXPECT_EQ(code_of([&] { encoder.evaluate(tokens); }, "is an encoder"), ErrorCode::usage);
    EXPECT_EQ(code_of([&] { encoder.evaluate_all(tokens, ignore); }, "is an encoder"), ErrorCode::usage);
    EXPECT_EQ(code_of(
                  [&] {
                      encoder.encode({tokens, {}, std::vector<int32_t>(2, 1)});
                  },
                  "2 mask values"),
              ErrorCode::input);
    EXPECT_EQ(code_of(
                  [&] {
                      encoder.encode({tokens, {}, std::vector<int32_t>(3, 0)});
                  },
                  "hides all"),
              ErrorCode::input);
    EXPECT_EQ(code_of(
                  [&] {
                      encoder.encode({tokens, std::vector<int32_t>(3, 9), {}});
                  },
                  "token types must"),
              ErrorCode::input);
    SingleSequence plain(decoder(), options_of());
    EXPECT_EQ(code_of([&] { plain.encode({tokens, {}, {}}); }, "is a decoder"), ErrorCode::usage);
    SyntheticShape headless = synthetic::decoder();
    headless.model_slots.pop_back();
    for (const EngineKind kind : kinds()) {
        SingleSequence sequence(synthetic_model(headless), options_of(kind));
        EXPECT_EQ(code_of([&] { sequence.evaluate(tokens); }, "no output layer"), ErrorCode::unsupported);
    }
    EngineOptions options = options_of();
    options.by_loop = true;
    EXPECT_EQ(code_of([&] { SingleSequence loops(looped_model("llama"), options); }, "all 3 loops"),
              ErrorCode::internal);
}

}  // namespace
}  // namespace refold
