// Many sequences at once give the logits of each by itself, however steps are put together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/code_of.h"
#include "core/error.h"
#include "engine/compare.h"
#include "engine/engine.h"
#include "engine/expression_models.h"
#include "engine/synthetic_models.h"
#include "engine/tested_device.h"
#include "model/load.h"

namespace refold {
namespace {

constexpr int64_t kContext = 48;

EngineOptions options_of(int64_t kv_tokens = 0) {
    return {
        .threads = 1, .context = kContext, .chunk = 64, .f32 = true, .sequences = 0, .kv_tokens = kv_tokens};
}

// Texts, what an engine by itself says of every token, and an engine that runs pieces of several at a time.
class Play {
public:
    Play(const Model& model, EngineOptions options, uint32_t seed)
        : random_(seed), n_vocab_(static_cast<size_t>(model.config.n_vocab)) {
        if (model.config.n_learned_positions > 0)
            options.context = std::min(options.context, model.config.n_learned_positions);
        engine_ = make_engine(model, options);
        for (uint32_t i = 0; i < 3; ++i) {
            const size_t length = 1 + random_() % static_cast<size_t>(engine_->capabilities().context);
            texts_.push_back(random_tokens(length, model.config.n_vocab, seed + i));
            expected_.push_back(all_logits(model, texts_.back(), on_cpu(options)));
        }
    }

    Engine& engine() { return *engine_; }

    // A new sequence of a text, with its first `done` tokens from another sequence of the same.
    int32_t begin(size_t text, std::optional<int32_t> from = {}, size_t done = 0) {
        const auto id = engine_->open(static_cast<int64_t>(texts_[text].size())).value();
        const auto known = static_cast<int64_t>(done);
        if (from && random_() % 2 == 0)
            engine_->load_tokens(id, known, saved_tokens(*engine_, *from, known));
        else if (from)
            engine_->copy(*from, id, known);
        open_[id] = {text, done};
        return id;
    }
    void end(int32_t id) {
        engine_->close(id);
        open_.erase(id);
    }

    // Runs so many tokens of each.
    void run(const std::vector<std::pair<int32_t, size_t>>& parts) {
        std::vector<Row> rows;
        std::vector<std::span<const float>> expected;
        for (const auto& [id, count] : parts) {
            auto& [text, done] = open_.at(id);
            for (size_t i = 0; i < count; ++i, ++done) {
                const bool asked = random_() % 2 == 0;
                rows.push_back({.sequence = id,
                                .position = static_cast<int64_t>(done),
                                .token = texts_[text][done],
                                .logits = asked});
                if (asked)
                    expected.emplace_back(std::span(expected_[text]).subspan(done * n_vocab_, n_vocab_));
            }
        }
        const auto logits = engine_->step({.rows = rows}).logits;
        ASSERT_EQ(logits.size(), expected.size() * n_vocab_);
        for (size_t i = 0; i < expected.size(); ++i)
            largest_ =
                std::max(largest_, scaled_difference(logits.subspan(i * n_vocab_, n_vocab_), expected[i]));
        compared_ += expected.size();
    }

    // Steps of anything that may happen.
    void run_randomly(int steps) {
        for (int i = 0; i < steps; ++i) {
            while (open_.size() < 2 || (open_.size() < 6 && random_() % 3 == 0))
                if (!begin_randomly()) break;
            std::vector<std::pair<int32_t, size_t>> parts;
            std::vector<int32_t> ended;
            size_t room = static_cast<size_t>(engine_->capabilities().max_rows);
            for (auto& [id, now] : open_) {
                const size_t left = texts_[now.text].size() - now.done;
                if (left == 0) {
                    if (random_() % 2 == 0) {
                        ended.push_back(id);
                    } else {
                        now.done = random_() % (now.done + 1);
                        engine_->truncate(id, static_cast<int64_t>(now.done));
                    }
                } else if (random_() % 4 > 0) {
                    const size_t wanted = random_() % 2 == 0 ? 1 : 1 + random_() % left;
                    parts.emplace_back(id, std::min(wanted, room));
                    room -= parts.back().second;
                }
            }
            for (const int32_t id : ended) end(id);
            std::shuffle(parts.begin(), parts.end(), random_);
            run(parts);
        }
    }

    size_t length(size_t text) const { return texts_[text].size(); }
    size_t longest() const {
        return static_cast<size_t>(
            std::max_element(texts_.begin(), texts_.end(),
                             [](const auto& a, const auto& b) { return a.size() < b.size(); }) -
            texts_.begin());
    }
    double largest() const { return largest_; }
    size_t compared() const { return compared_; }

private:
    struct Now {
        size_t text, done;
    };

    bool begin_randomly() {
        const size_t text = random_() % texts_.size();
        if (engine_->capabilities().kv_tokens - engine_->kv_tokens_used() < engine_->capabilities().context)
            return false;
        for (const auto& [id, now] : open_) {
            if (now.text == text && random_() % 2 == 0) {
                begin(text, id, random_() % (now.done + 1));
                return true;
            }
        }
        begin(text);
        return true;
    }

    std::mt19937 random_;
    size_t n_vocab_;
    std::vector<std::vector<int32_t>> texts_;
    std::vector<std::vector<float>> expected_;  // [tokens, n_vocab]
    std::unique_ptr<Engine> engine_;
    std::map<int32_t, Now> open_;
    double largest_ = 0;
    size_t compared_ = 0;
};

void expect_equal(const std::string& name, const Model& model, const EngineOptions& options, double tolerance,
                  uint32_t seed = 1) {
    Play play(model, options, seed);
    play.run_randomly(12);
    EXPECT_GT(play.compared(), 10U) << name;
    EXPECT_LE(play.largest(), tolerance) << name;
}

// Learned positions, ALiBi, windows with soft caps, rotations, parallel modules, norms of heads.
TEST(Batch, EveryArchitecture) {
    for (auto& [name, model, input] : synthetic_models()) {
        if (!model.config.causal || model.config.rope.stretches(kContext)) continue;
        expect_equal(name, model, options_of(), 1e-4);
        expect_equal(name + ", shared", share(model), options_of(), 1e-4, 2);
    }
}

// Factors, shared heads, pruned layers, prefixes, loops.
TEST(Batch, EveryExpression) {
    for (const auto& [name, model, input] : expression_models()) {
        expect_equal(name, model, options_of(), 1e-4);
    }
}

// Probabilities or keys and values of earlier layers, W_c.
TEST(Batch, AttentionOfOtherLayers) {
    int lending = 0;
    for (uint32_t seed = 1; seed <= 16; ++seed) {
        const Model model = random_expression_model(seed, {.sizes = true, .sources = true});
        lending += model.topology.sources.empty() ? 0 : 1;
        expect_equal(fmt::format("seed {}", seed), model, options_of(), 1e-4, seed);
    }
    EXPECT_GT(lending, 4);
    for (auto& [name, model, input] : synthetic_models()) {
        if (!model.config.causal || model.config.rope.stretches(kContext)) continue;
        take_attention(model, 1, {std::nullopt, 0});
        take_attention(model, 2, {0, std::nullopt});
        expect_equal(name, model, options_of(), 1e-4);
    }
}

// In caches in which sequences lie at equal distances, and in small ones.
TEST(Batch, OnADevice) {
    // CUDA multiplies in TF32.
    const double tolerance = tested_device().starts_with("cuda") ? 2e-2 : 1e-3;
    for (const int64_t kv_tokens : {0, 4096}) {
        const EngineOptions options = on_tested_device(options_of(kv_tokens));
        for (auto& [name, model, input] : synthetic_models()) {
            if (!model.config.causal || model.config.rope.stretches(kContext)) continue;
            expect_equal(name, model, options, tolerance);
            take_attention(model, 1, {std::nullopt, 0});
            take_attention(model, 2, {0, std::nullopt});
            expect_equal(name + ", attention of other layers", model, options, tolerance);
        }
    }
    EngineOptions quantized = on_tested_device(options_of(4096));
    quantized.f32 = false;
    quantized.kv = KvType::q8_0;
    const Model model = ExpressionBuilder("llama", 1, {.head_dim = 32}).finish();
    expect_equal("q8_0", model, quantized, 5e-2);
}

class QuantizedBatch : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Types, QuantizedBatch, testing::Values("f16", "q8_0", "q4_0", "q4_1"));

TEST_P(QuantizedBatch, HasTheSameBits) {
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/quantized/" + GetParam() + ".gguf");
    EngineOptions options = options_of();
    options.f32 = false;
    expect_equal(GetParam(), model, options, 0);
}

TEST(Batch, RoomIsMovedTogether) {
    const Model model = synthetic_model(synthetic::decoder());
    Play play(model, options_of(120), 3);
    Engine& engine = play.engine();
    const int32_t first = engine.open(20).value();
    const size_t longest = play.longest();
    ASSERT_GT(play.length(longest), 10U);
    const int32_t text = play.begin(longest);
    play.run({{text, 5}});
    std::vector<int32_t> single;
    while (const auto id = engine.open(1)) single.push_back(*id);
    EXPECT_EQ(engine.kv_tokens_used(), 120);
    // No hole is large enough by itself.
    engine.close(first);
    for (size_t i = 0; i < 20; i += 2) engine.close(single[i]);
    const int32_t moved = engine.open(30).value();
    EXPECT_FALSE(engine.open(1).has_value());
    play.run({{text, play.length(longest) - 5}});
    EXPECT_LE(play.largest(), 1e-4);
    engine.close(moved);
    for (size_t i = 0; i < single.size(); ++i)
        if (i >= 20 || i % 2 == 1) engine.close(single[i]);
    play.run_randomly(20);
    EXPECT_LE(play.largest(), 1e-4);
}

TEST(Batch, RoomsAreResizedWhereTheyLie) {
    const Model model = synthetic_model(synthetic::decoder());
    const auto engine = make_engine(model, options_of(120));
    const int32_t first = engine->open(20).value(), second = engine->open(20).value();
    EXPECT_FALSE(engine->resize(first, 21));
    EXPECT_TRUE(engine->resize(first, 5));
    EXPECT_EQ(engine->kv_tokens_used(), 25);
    EXPECT_EQ(engine->open(15).value_or(-1), second + 1);
    EXPECT_FALSE(engine->resize(first, 6));
    EXPECT_TRUE(engine->resize(second, kContext));
    EXPECT_EQ(engine->kv_tokens_used(), 20 + kContext);
    EXPECT_FALSE(engine->resize(second, kContext + 1));
}

TEST(Batch, MemoryIsThatOfTheLargestShape) {
    const Model model = ExpressionBuilder("llama", 1, {.layers = 1, .vocab = 48000}).finish();
    const auto engine = make_engine(model, options_of());
    const int32_t id = engine->open(kContext).value();
    uint64_t first = 0;
    for (int round = 0; round < 2; ++round) {
        for (int64_t tokens = kContext; tokens > 30; --tokens) {
            std::vector<Row> rows;
            for (int64_t t = 0; t < tokens; ++t)
                rows.push_back({.sequence = id, .position = t, .token = 1, .logits = true});
            engine->step({.rows = rows});
            engine->truncate(id, 0);
            if (first == 0) first = engine->memory().compute_bytes;
        }
    }
    EXPECT_GT(first, kContext * 48000 * sizeof(float));
    EXPECT_EQ(engine->memory().compute_bytes, first);
    EXPECT_LT(first, 80ULL << 20);
}

TEST(Batch, WhatIsRefused) {
    const auto refuses = [](const Model& model, const EngineOptions& options, const std::string& text) {
        EXPECT_EQ(code_of([&] { make_engine(model, options); }, text), ErrorCode::unsupported);
    };
    const Model model = synthetic_model(synthetic::decoder());
    refuses(synthetic_model(synthetic::encoder()), options_of(), "encoder");
    EngineOptions options = options_of();
    options.kind = EngineKind::torch;
    refuses(model, options, "--engine ggml");
    options = options_of();
    options.eviction = {.policy = KvPolicy::recent, .budget = 0.5};
    refuses(model, options, "--kv-policy");
    options = options_of();
    options.range = LayerRange{0, 1};
    refuses(model, options, "ranges");
    Model stretched = synthetic_model(synthetic::dynamic_rotation());
    options = options_of();
    options.context = stretched.config.rope.original_context + 1;
    refuses(stretched, options, "--context of at most");
    --options.context;
    EXPECT_NO_THROW(make_engine(stretched, options));
    EXPECT_EQ(code_of([&] { make_engine(model, options_of(-1)); }, "KV tokens"), ErrorCode::usage);
    options = options_of();
    options.chunk = 0;
    EXPECT_EQ(code_of([&] { make_engine(model, options); }, "chunk"), ErrorCode::usage);
}

TEST(Batch, BadCalls) {
    const Model model = synthetic_model(synthetic::decoder());
    EngineOptions options = options_of(60);
    options.chunk = 4;
    const auto engine = make_engine(model, options);
    EXPECT_EQ(engine->capabilities().loops, 1);
    EXPECT_EQ(engine->capabilities().max_rows, 4);
    EXPECT_EQ(engine->capabilities().context, kContext);
    EXPECT_EQ(engine->capabilities().kv_tokens, 60);
    EXPECT_EQ(code_of([&] { engine->open(kContext + 1); }, "1 to 48"), ErrorCode::usage);
    EXPECT_EQ(code_of([&] { engine->open(0); }, "1 to 48"), ErrorCode::usage);
    const int32_t id = engine->open(3).value();
    EXPECT_EQ(engine->kv_tokens_used(), 3);
    EXPECT_FALSE(engine->open(kContext).has_value() && engine->open(kContext).has_value());
    const auto fails = [&](std::vector<Row> rows, const std::string& text,
                           ErrorCode code = ErrorCode::internal) {
        EXPECT_EQ(code_of([&] { engine->step({.rows = rows}); }, text), code);
    };
    fails({{.sequence = id, .token = 17}}, "vocabulary of 17", ErrorCode::input);
    fails({{.sequence = id, .token = -1}}, "vocabulary of 17", ErrorCode::input);
    fails({{.sequence = 7, .token = 1}}, "sequence 7 is not open");
    fails({{.sequence = id, .position = 1, .token = 1}}, "token 1 of sequence");
    fails({{.sequence = id, .loop = 1, .token = 1}}, "loop 1");
    fails({{.sequence = id, .token = 1, .work = Row::Work::keys_only}}, "cannot run");
    fails(std::vector<Row>(5, {.sequence = id, .token = 1}), "at most 4 rows");
    EXPECT_TRUE(engine->step({}).logits.empty());
    std::vector<Row> rows;
    for (int64_t t = 0; t < 4; ++t) rows.push_back({.sequence = id, .position = t, .token = 1});
    fails(rows, "which has 0 of 3");
    rows.pop_back();
    EXPECT_TRUE(engine->step({.rows = rows}).logits.empty());
    EXPECT_EQ(code_of([&] { engine->truncate(id, 4); }, "has 3 tokens, not 4"), ErrorCode::internal);
    const int32_t other = engine->open(2).value();
    EXPECT_EQ(code_of([&] { engine->copy(id, other, 4); }, "has 3 tokens, not 4"), ErrorCode::internal);
    EXPECT_EQ(code_of([&] { engine->resize(id, 2); }, "which has 3"), ErrorCode::internal);
    EXPECT_EQ(code_of([&] { engine->copy(id, other, 3); }, "no room for 3"), ErrorCode::internal);
    EXPECT_EQ(code_of([&] { saved_tokens(*engine, id, 4); }, "has 3 tokens, not 4"), ErrorCode::internal);
    const std::vector<std::byte> saved = saved_tokens(*engine, id, 2);
    EXPECT_EQ(code_of([&] { engine->load_tokens(other, 1, saved); }, "1 saved tokens have"),
              ErrorCode::input);
    EXPECT_EQ(code_of([&] { engine->load_tokens(other, 3, saved); }, "no room for 3"), ErrorCode::internal);
    options.sequences = 1;
    options.kv_tokens = 0;
    EXPECT_EQ(code_of([&] { make_engine(model, options)->saved_bytes(1); }, "several sequences"),
              ErrorCode::unsupported);
    engine->copy(id, other, 2);
    EXPECT_EQ(code_of([&] { engine->copy(id, other, 1); }, "no room for 1"), ErrorCode::internal);
    EXPECT_EQ(code_of([&] { engine->share(id, 0, 1); }, "one loop"), ErrorCode::internal);
    engine->close(id);
    EXPECT_EQ(code_of([&] { engine->close(id); }, "not open"), ErrorCode::internal);
}

}  // namespace
}  // namespace refold
