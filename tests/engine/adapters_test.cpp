// Sequences with different adapters in the steps of one engine get the logits of the models that have these
// adapters in their weights.
#include "engine/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "core/code_of.h"
#include "engine/compare.h"
#include "engine/looped_models.h"
#include "engine/tested_device.h"
#include "engine/warm_up.h"

namespace refold {
namespace {

constexpr int64_t kContext = 48;
constexpr double kTolerance = 2e-4;

EngineOptions options_of(int threads = 1) {
    return {.threads = threads,
            .context = kContext,
            .chunk = 128,
            .f32 = true,
            .sequences = 0,
            .kv_tokens = 8 * kContext};
}

// A sequence of an engine, and what it should say.
struct Played {
    int32_t id = -1;
    std::vector<int32_t> tokens;
    std::vector<float> expected;  // [tokens, n_vocab]
    size_t done = 0;
};

Played play(Engine& engine, const Model& merged, int32_t adapter, size_t length, uint32_t seed) {
    Played out;
    out.tokens = random_tokens(length, merged.config.n_vocab, seed);
    out.expected = all_logits(merged, out.tokens, options_of());
    out.id = *engine.open(static_cast<int64_t>(length));
    if (adapter >= 0) engine.use_adapter(out.id, adapter);
    return out;
}

// One step of so many tokens of each; with `ask` below 1, only some rows ask for logits. Returns the largest
// difference.
double run(Engine& engine, const std::vector<Played*>& sequences, size_t count, int ask = 1) {
    const int32_t loops = engine.capabilities().loops;
    const auto n_vocab = static_cast<size_t>(engine.capabilities().n_vocab);
    double largest = 0;
    for (int32_t loop = 0; loop < loops; ++loop) {
        std::vector<Row> rows;
        std::vector<std::span<const float>> expected;
        for (Played* s : sequences) {
            for (size_t i = 0; i < count; ++i) {
                Row row{.sequence = s->id, .position = static_cast<int64_t>(s->done + i), .loop = loop};
                if (loop == 0) row.token = s->tokens[s->done + i];
                row.logits = loop + 1 == loops && (s->done + i) % static_cast<size_t>(ask) == 0;
                rows.push_back(row);
                if (row.logits)
                    expected.emplace_back(std::span(s->expected).subspan((s->done + i) * n_vocab, n_vocab));
            }
        }
        const auto logits = engine.step({.rows = rows}).logits;
        EXPECT_EQ(logits.size(), expected.size() * n_vocab);
        for (size_t i = 0; i < expected.size(); ++i)
            largest = std::max(largest, scaled_difference(logits.subspan(i * n_vocab, n_vocab), expected[i]));
    }
    for (Played* s : sequences) s->done += count;
    return largest;
}

// Prompts and then single tokens of two adapters and none, in one batch.
void expect_as_merged(const Model& model, const EngineOptions& options, const std::string& label) {
    const auto engine = make_engine(model, options);
    EXPECT_TRUE(engine->capabilities().adapters);
    const Adapter first = random_adapter(model, 1),
                  second = random_adapter(model, 2, {Slot::attn_q, Slot::ffn_down});
    const int32_t one = engine->add_adapter(first), two = engine->add_adapter(second);
    const Model with_one = with_adapter(model, first), with_two = with_adapter(model, second);
    Played a = play(*engine, with_one, one, 16, 11), b = play(*engine, model, -1, 16, 12),
           c = play(*engine, with_two, two, 16, 13), d = play(*engine, with_one, one, 16, 14);
    EXPECT_GT(largest_difference(a.expected, all_logits(model, a.tokens, options_of())), 0.1) << label;
    EXPECT_LT(run(*engine, {&b}, 1), kTolerance) << label << ": without adapters";
    EXPECT_LT(run(*engine, {&a, &c, &d}, 10, 3), kTolerance) << label << ": prompts";
    EXPECT_LT(run(*engine, {&b}, 9), kTolerance) << label;
    for (int i = 0; i < 3; ++i)
        EXPECT_LT(run(*engine, {&a, &b, &c, &d}, 1), kTolerance) << label << ": single tokens";
    EXPECT_LT(run(*engine, {&d, &c, &b, &a}, 3), kTolerance) << label << ": several tokens";
}

TEST(Adapters, AsInTheWeights) {
    for (const std::string& family : kExpressionFamilies) {
        const Model model = ExpressionBuilder(family).finish();
        expect_as_merged(model, options_of(), family);
    }
    // Threads share the factors where rows are few.
    expect_as_merged(ExpressionBuilder("llama").finish(), options_of(2), "two threads");
}

// Base weights in any expression, and a LoRA of the model's own beside the adapter's.
TEST(Adapters, OnSharedWeights) {
    ExpressionBuilder shared("llama");
    shared.at(1, Slot::attn_q) = shared.heads(1, Slot::attn_q);
    shared.tie(2, 0, Slot::ffn_up);
    expect_as_merged(shared.finish(), options_of(), "shared heads");
}

TEST(Adapters, OfLoopedModelsInStepsByLoop) {
    EngineOptions options = options_of();
    options.by_loop = true;
    LoopedShape shape;
    shape.lora = false;
    expect_as_merged(looped_model("llama", shape), options, "looped");
}

// Weights of loops with LoRA of their own, and adapters on top: the sums of both.
TEST(Adapters, BesideTheLoraOfLoops) {
    EngineOptions options = options_of(2);
    options.by_loop = true;
    const Model model = looped_model("llama");
    const auto engine = make_engine(model, options), plain = make_engine(model, options);
    const int32_t adapter = engine->add_adapter(random_adapter(model, 3));
    Played with = play(*engine, model, adapter, 8, 1), without = play(*engine, model, -1, 8, 1);
    EXPECT_GT(run(*engine, {&with}, 4), 0.01);
    EXPECT_LT(run(*engine, {&without}, 4), kTolerance);
}

TEST(Adapters, OnADevice) {
    EngineOptions options = on_tested_device(options_of());
    for (const std::string family : {"llama", "gpt2"})
        expect_as_merged(ExpressionBuilder(family).finish(), options, family);
    options.by_loop = true;
    LoopedShape shape;
    shape.lora = false;
    expect_as_merged(looped_model("llama", shape), options, "looped");
}

void expect_to_come_and_go(const EngineOptions& options) {
    const Model model = ExpressionBuilder("llama").finish();
    const auto engine = make_engine(model, options);
    const uint64_t bytes = engine->memory().weight_bytes;
    const Adapter first = random_adapter(model, 1), second = random_adapter(model, 2);
    const int32_t one = engine->add_adapter(first);
    Played a = play(*engine, with_adapter(model, first), one, 12, 1);
    EXPECT_LT(run(*engine, {&a}, 4), kTolerance);
    EXPECT_GT(engine->memory().weight_bytes, bytes);
    // Another one while the sequence goes on.
    const int32_t two = engine->add_adapter(second);
    Played b = play(*engine, with_adapter(model, second), two, 12, 2);
    EXPECT_LT(run(*engine, {&a, &b}, 4), kTolerance);
    EXPECT_EQ(code_of([&] { engine->remove_adapter(one); }, "has adapter"), ErrorCode::internal);
    engine->close(a.id);
    engine->remove_adapter(one);
    EXPECT_LT(run(*engine, {&b}, 4), kTolerance);
    EXPECT_EQ(engine->add_adapter(first), one) << "numbers are used again";
    engine->close(b.id);
    engine->remove_adapter(one);
    engine->remove_adapter(two);
    EXPECT_EQ(engine->memory().weight_bytes, bytes);
    Played c = play(*engine, model, -1, 12, 3);
    EXPECT_LT(run(*engine, {&c}, 12), kTolerance);
}

TEST(Adapters, ComeAndGo) { expect_to_come_and_go(options_of()); }

TEST(Adapters, ComeAndGoOnADevice) { expect_to_come_and_go(on_tested_device(options_of())); }

TEST(Adapters, WarmUpTakesThemToADevice) {
    const Model model = ExpressionBuilder("llama").finish();
    const auto engine = make_engine(model, on_tested_device(options_of()));
    const Adapter first = random_adapter(model, 1), second = random_adapter(model, 2);
    const std::array adapters = {engine->add_adapter(first), engine->add_adapter(second)};
    const uint64_t before = engine->memory().weight_bytes;
    warm_up(*engine, adapters);
    EXPECT_EQ(engine->kv_tokens_used(), 0);
    const uint64_t bytes = engine->memory().weight_bytes;
    EXPECT_GT(bytes, before);
    Played b = play(*engine, with_adapter(model, second), adapters[1], 12, 2);
    EXPECT_LT(run(*engine, {&b}, 12), kTolerance);
    EXPECT_EQ(engine->memory().weight_bytes, bytes);
}

TEST(Adapters, CopiesStayWithTheAdapter) {
    const Model model = ExpressionBuilder("llama").finish();
    const auto engine = make_engine(model, options_of());
    const Adapter adapter = random_adapter(model, 1);
    const int32_t number = engine->add_adapter(adapter);
    Played a = play(*engine, with_adapter(model, adapter), number, 12, 1);
    EXPECT_LT(run(*engine, {&a}, 8), kTolerance);
    Played same = play(*engine, with_adapter(model, adapter), number, 12, 1);
    engine->copy(a.id, same.id, 8);
    same.done = 8;
    EXPECT_LT(run(*engine, {&same}, 4), kTolerance);
    Played other = play(*engine, model, -1, 12, 1);
    EXPECT_EQ(code_of([&] { engine->copy(a.id, other.id, 8); }, "another adapter"), ErrorCode::internal);
    EXPECT_EQ(code_of([&] { engine->use_adapter(a.id, -1); }, "tokens"), ErrorCode::internal);
    EXPECT_EQ(code_of([&] { engine->use_adapter(other.id, 7); }, "no adapter 7"), ErrorCode::internal);
}

TEST(Adapters, WhatDoesNotFit) {
    const Model model = ExpressionBuilder("llama").finish();
    const auto engine = make_engine(model, options_of());
    const auto refused = [&](const std::function<void(Adapter::Term&)>& change, const char* text) {
        Adapter adapter = random_adapter(model, 1, {Slot::attn_q});
        change(adapter.terms.front());
        EXPECT_EQ(code_of([&] { engine->add_adapter(adapter); }, text), ErrorCode::input);
    };
    refused([](auto& term) { term.a.pop_back(); }, "expected");
    refused([](auto& term) { term.layer = 4; }, "no layer");
    refused([](auto& term) { term.slot = Slot::attn_comp; }, "not in the model");
    EngineOptions single = options_of();
    single.sequences = 1;
    single.kv_tokens = 0;
    const auto alone = make_engine(model, single);
    EXPECT_FALSE(alone->capabilities().adapters);
    EXPECT_EQ(code_of([&] { alone->add_adapter(random_adapter(model, 1)); }, "several sequences"),
              ErrorCode::unsupported);
}

// Products with BF16 factors, as most adapters have them.
TEST(Adapters, InHalfPrecision) {
    const Model model = ExpressionBuilder("llama").finish();
    EngineOptions options = options_of();
    options.f32 = false;
    const auto engine = make_engine(model, options);
    for (const DType type : {DType::F16, DType::BF16}) {
        Adapter adapter = random_adapter(model, 1);
        for (Adapter::Term& term : adapter.terms) {
            term.type = type;
            for (auto* factor : {&term.a, &term.b}) {
                const auto bytes = quantize(type, *factor, static_cast<int64_t>(factor->size()));
                dequantize(type, bytes, *factor);
            }
        }
        const int32_t number = engine->add_adapter(adapter);
        Played a = play(*engine, with_adapter(model, adapter), number, 12, 1);
        EXPECT_LT(run(*engine, {&a}, 8), 0.05);
        EXPECT_LT(run(*engine, {&a}, 1), 0.05);
    }
}

}  // namespace
}  // namespace refold
