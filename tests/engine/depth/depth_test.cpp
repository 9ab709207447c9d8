// Steps whose rows stand at different loops give what each sequence gives by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "core/error.h"
#include "engine/compare.h"
#include "engine/engine.h"
#include "engine/looped_models.h"
#include "engine/reference.h"
#include "engine/tested_device.h"
#include "model/materialize.h"

namespace refold {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Work = Row::Work;

constexpr int64_t kContext = 24;

EngineOptions options_of(int threads = 1, bool f32 = true) {
    return {.threads = threads,
            .context = kContext,
            .chunk = 40,
            .f32 = f32,
            .sequences = 0,
            .kv_tokens = 6 * kContext,
            .by_loop = true};
}

double mean_difference(std::span<const float> got, std::span<const float> expected) {
    double sum = 0;
    for (size_t i = 0; i < expected.size(); ++i) sum += std::abs(static_cast<double>(got[i]) - expected[i]);
    return sum / static_cast<double>(expected.size());
}

// Texts at random depths, beside the logits that models with as many loops give for all of a text.
class Play {
public:
    Play(const Model& model, const EngineOptions& options, uint32_t seed)
        : random_(seed),
          loops_(static_cast<size_t>(model.topology.loops)),
          n_vocab_(static_cast<size_t>(model.config.n_vocab)),
          engine_(make_engine(model, options)) {
        for (uint32_t i = 0; i < 3; ++i)
            texts_.push_back(random_tokens(2 + random_() % (kContext - 2), model.config.n_vocab, seed + i));
        for (size_t s = 0; s < loops_; ++s) {
            const Model part = first_loops(model, static_cast<int64_t>(s + 1));
            auto& logits = expected_.emplace_back();
            for (const auto& text : texts_) logits.push_back(all_logits(part, text, on_cpu(options)));
        }
    }

    void run(int steps) {
        for (int i = 0; i < steps; ++i) {
            while (open_.size() < 4) begin();
            step();
            std::vector<int32_t> ended;
            for (auto& [id, now] : open_) {
                if (now.done.back() == texts_[now.text].size()) ended.push_back(id);
                if (random_() % 12 == 0) truncate(id, now);
            }
            for (const int32_t id : ended) {
                engine_->close(id);
                open_.erase(id);
            }
        }
    }

    double largest() const { return largest_; }
    size_t compared() const { return compared_; }

private:
    struct Now {
        size_t text;
        std::vector<size_t> done;  // tokens by loop
    };

    void begin() {
        const size_t text = random_() % texts_.size();
        const auto id = engine_->open(static_cast<int64_t>(texts_[text].size())).value();
        size_t copied = 0;
        for (const auto& [from, now] : open_) {
            if (now.text != text || copied > 0 || now.done.back() == 0) continue;
            copied = 1 + random_() % now.done.back();
            const auto known = static_cast<int64_t>(copied);
            if (random_() % 2 == 0)
                engine_->copy(from, id, known);
            else
                engine_->load_tokens(id, known, saved_tokens(*engine_, from, known));
        }
        open_[id] = {text, std::vector<size_t>(loops_, copied)};
    }

    void truncate(int32_t id, Now& now) {
        const size_t length = random_() % (now.done.front() + 1);
        engine_->truncate(id, static_cast<int64_t>(length));
        for (size_t& done : now.done) done = std::min(done, length);
    }

    void step() {
        struct Part {
            int32_t id;
            size_t loop, first, count;
        };
        std::vector<Part> parts;
        auto room = static_cast<size_t>(engine_->capabilities().max_rows);
        for (auto& [id, now] : open_) {
            const std::vector<size_t> before = now.done;
            for (size_t s = 0; s < loops_; ++s) {
                const size_t there = s == 0 ? texts_[now.text].size() : before[s - 1],
                             left = std::min(there - before[s], room);
                if (left == 0 || random_() % 3 == 0) continue;
                const size_t count = random_() % 2 == 0 ? 1 : 1 + random_() % left;
                parts.push_back({id, s, before[s], count});
                now.done[s] += count;
                room -= count;
            }
        }
        std::shuffle(parts.begin(), parts.end(), random_);
        std::vector<Row> rows;
        std::vector<std::span<const float>> expected;
        for (const auto& [id, loop, first, count] : parts) {
            const size_t text = open_.at(id).text;
            for (size_t t = first; t < first + count; ++t) {
                const bool asked = random_() % 2 == 0;
                rows.push_back({.sequence = id,
                                .position = static_cast<int64_t>(t),
                                .loop = static_cast<int32_t>(loop),
                                .token = loop == 0 ? texts_[text][t] : -1,
                                .logits = asked});
                if (asked)
                    expected.emplace_back(std::span(expected_[loop][text]).subspan(t * n_vocab_, n_vocab_));
            }
        }
        const auto logits = engine_->step({.rows = rows}).logits;
        ASSERT_EQ(logits.size(), expected.size() * n_vocab_);
        for (size_t i = 0; i < expected.size(); ++i)
            largest_ =
                std::max(largest_, scaled_difference(logits.subspan(i * n_vocab_, n_vocab_), expected[i]));
        compared_ += expected.size();
    }

    std::mt19937 random_;
    size_t loops_, n_vocab_;
    std::unique_ptr<Engine> engine_;
    std::vector<std::vector<int32_t>> texts_;
    std::vector<std::vector<std::vector<float>>> expected_;  // by loop and text [tokens, n_vocab]
    std::map<int32_t, Now> open_;
    double largest_ = 0;
    size_t compared_ = 0;
};

void expect_equal(const std::string& name, const Model& model, const EngineOptions& options, double tolerance,
                  uint32_t seed = 1) {
    Play play(model, options, seed);
    play.run(40);
    EXPECT_GT(play.compared(), 60U) << name;
    EXPECT_LE(play.largest(), tolerance) << name;
}

// Norms and biases of all kinds, learned positions, parallel modules.
TEST(Depth, EveryFamilyWithAndWithoutLora) {
    for (const auto& family : kExpressionFamilies) {
        for (const bool lora : {false, true}) {
            for (const bool vectors : {false, true}) {
                expect_equal(fmt::format("{}, LoRA {}, vectors {}", family, lora, vectors),
                             looped_model(family, {.lora = lora, .vectors = vectors}), options_of(), 1e-4);
            }
        }
    }
}

TEST(Depth, RandomSchedules) {
    for (uint32_t seed = 1; seed <= 10; ++seed) {
        const LoopedShape shape{.loops = 2 + seed % 3, .layers = 1 + seed % 2};
        expect_equal(fmt::format("seed {}", seed), looped_model("llama", shape, seed), options_of(), 1e-4,
                     seed);
    }
}

// Few rows divide the weights between threads, many rows themselves.
TEST(Depth, Threads) {
    for (const int threads : {2, 3}) {
        Play play(looped_model("qwen2", {.loops = 2, .layers = 1}), options_of(threads), 1);
        play.run(16);
        EXPECT_LE(play.largest(), 1e-4) << threads;
    }
}

constexpr ExpressionShape kBlocks{
    .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 64, .ff = 96, .vocab = 64};

// Rounded inputs and products: as far from the exact ones as a sequence by itself is.
TEST(Depth, TypesOfWeights) {
    for (const DType type : {DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0}) {
        const Model model =
            with_type(looped_model("llama", {.loops = 2, .rank = 32, .sizes = kBlocks}), type);
        expect_equal(std::string(refold::name(type)) + " as floats", model, options_of(), 1e-4);
        const auto tokens = random_tokens(kContext, model.config.n_vocab, 1);
        const EngineOptions rounded = options_of(1, false);
        const auto exact = all_logits(model, tokens, options_of());
        const double expected = mean_difference(all_logits(model, tokens, rounded), exact);
        const auto engine = make_engine(model, options_of(1, false));
        const int32_t id = engine->open(kContext).value();
        std::vector<float> got;
        for (int64_t t = 0; t < kContext; ++t) {
            for (int32_t loop = 0; loop < 2; ++loop) {
                const Row row{.sequence = id,
                              .position = t,
                              .loop = loop,
                              .token = tokens[static_cast<size_t>(t)],
                              .logits = loop == 1};
                const auto logits = engine->step({.rows = {&row, 1}}).logits;
                got.insert(got.end(), logits.begin(), logits.end());
            }
        }
        EXPECT_LE(mean_difference(got, exact), 1.5 * expected + 1e-4) << refold::name(type);
    }
}

// Weights of other kinds that all loops have in common, and what attention takes from other layers.
TEST(Depth, CommonExpressions) {
    LoopedShape shape{.loops = 2, .layers = 3};
    ExpressionBuilder b = looped_builder("llama", shape, 3);
    for (const Slot slot : {Slot::ffn_down, Slot::attn_o}) {
        b.at(1, slot) = b.low_rank(1, slot, 9);
        b.tie(4, 1, slot);
    }
    b.at(0, Slot::ffn_up) = b.plus(0, Slot::ffn_up, b.low_rank(0, Slot::ffn_up, 7), 3);
    b.at(3, Slot::ffn_up) =
        b.plus(3, Slot::ffn_up, std::get<LowRank>(std::get<Plus>(b.at(0, Slot::ffn_up)).base), 6);
    for (const size_t first : {0U, 3U}) {
        b.share_kv(first + 1, first);
        b.share_probabilities(first + 2, first);
    }
    expect_equal("factors and sources", b.finish(), options_of(), 1e-4);
}

// ---- keys only, and shared keys and values ----

using reference::Vector;

// A Llama token by token, loop by loop, in plain loops: what is cached is stated.
class LoopReference {
public:
    explicit LoopReference(const Model& model)
        : model_(model),
          loops_(static_cast<size_t>(model.topology.loops)),
          layers_(model.topology.layers.size() / loops_) {}

    struct Token {
        Vector residual;
        std::vector<Vector> keys, values;  // by layer
    };
    using Sequence = std::vector<Token>;

    void run(Sequence& sequence, size_t t, size_t loop, int32_t token) const {
        if (loop == 0) {
            const size_t p = model_.topology.layers.size();
            sequence.push_back(
                {row(kWholeModel, Slot::token_embd, token), std::vector<Vector>(p), std::vector<Vector>(p)});
        }
        Vector& x = sequence[t].residual;
        for (size_t p = loop * layers_; p < (loop + 1) * layers_; ++p) {
            const Vector normed = norm(p, Slot::attn_norm, x);
            cache(sequence[t], t, p, normed);
            add(x, times(p, Slot::attn_o, attention(sequence, t, p, normed)));
            const Vector input = norm(p, Slot::ffn_norm, x);
            Vector inner = times(p, Slot::ffn_up, input);
            const Vector gate = times(p, Slot::ffn_gate, input);
            for (size_t i = 0; i < inner.size(); ++i)
                inner[i] *= reference::activate(model_.config.activation, gate[i]);
            add(x, times(p, Slot::ffn_down, inner));
        }
    }

    void keys_only(Sequence& sequence, size_t t, size_t loop) const {
        for (size_t p = loop * layers_; p < (loop + 1) * layers_; ++p)
            cache(sequence[t], t, p, norm(p, Slot::attn_norm, sequence[t].residual));
    }

    void share(Sequence& sequence, size_t t, size_t loop) const {
        for (size_t p = loop * layers_; p < loops_ * layers_; ++p) {
            sequence[t].keys[p] = sequence[t].keys[(loop - 1) * layers_ + p % layers_];
            sequence[t].values[p] = sequence[t].values[(loop - 1) * layers_ + p % layers_];
        }
    }

    std::vector<float> logits(const Token& token, size_t loop) const {
        Vector x = token.residual;
        const size_t end = (loop + 1) * layers_ - 1;
        if (model_.topology.has(end, Slot::exit_map)) add(x, times(end, Slot::exit_map, token.residual));
        const Vector hidden = norm(kWholeModel, Slot::output_norm, x);
        Vector out = times(kWholeModel, Slot::output, hidden);
        if (model_.topology.has(end, Slot::exit_output)) add(out, times(end, Slot::exit_output, hidden));
        return {out.begin(), out.end()};
    }

private:
    const std::vector<float>& weight(size_t p, Slot slot) const {
        auto& values = weights_[{p, slot}];
        const Slots& slots = p == kWholeModel ? model_.topology.globals : model_.topology.layers[p];
        if (values.empty()) values = materialize(model_, slots.at(slot), slot, p);
        return values;
    }
    Vector row(size_t p, Slot slot, int64_t r) const {
        const auto& values = weight(p, slot);
        const auto in = slot_shape(slot, model_.config, p).in;
        return {values.begin() + r * in, values.begin() + (r + 1) * in};
    }
    Vector times(size_t p, Slot slot, const Vector& x) const {
        Vector out;
        for (int64_t r = 0; r < slot_shape(slot, model_.config, p).out; ++r)
            out.push_back(reference::dot(row(p, slot, r), x));
        return out;
    }
    Vector norm(size_t p, Slot slot, const Vector& x) const {
        return reference::normalize(x, model_.config.norm, model_.config.norm_eps, row(p, slot, 0), {});
    }
    static void add(Vector& x, const Vector& y) {
        for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    }
    void rotate(Vector& heads, size_t t) const {
        for (size_t at = 0; at < heads.size(); at += static_cast<size_t>(model_.config.head_dim))
            reference::rotate(&heads[at], model_.config.rope, static_cast<int>(t), 0, {});
    }
    void cache(Token& token, size_t t, size_t p, const Vector& normed) const {
        token.keys[p] = times(p, Slot::attn_k, normed);
        rotate(token.keys[p], t);
        token.values[p] = times(p, Slot::attn_v, normed);
    }
    Vector attention(const Sequence& sequence, size_t t, size_t p, const Vector& normed) const {
        Vector q = times(p, Slot::attn_q, normed);
        rotate(q, t);
        const auto d = static_cast<size_t>(model_.config.head_dim);
        Vector out(q.size());
        for (size_t h = 0; h < q.size() / d; ++h) {
            const size_t kv = h / static_cast<size_t>(model_.config.q_per_kv()) * d;
            Vector weights(t + 1);
            double total = 0;
            for (size_t j = 0; j <= t; ++j) {
                for (size_t c = 0; c < d; ++c) weights[j] += q[h * d + c] * sequence[j].keys[p][kv + c];
                weights[j] = std::exp(weights[j] * static_cast<double>(model_.config.attention_scale));
                total += weights[j];
            }
            for (size_t j = 0; j <= t; ++j) {
                for (size_t c = 0; c < d; ++c)
                    out[h * d + c] += weights[j] / total * sequence[j].values[p][kv + c];
            }
        }
        return out;
    }

    const Model& model_;
    size_t loops_, layers_;
    mutable std::map<std::pair<size_t, Slot>, std::vector<float>> weights_;
};

// Tokens leave at random loops; their later keys and values come about in every way.
void expect_reference(const Model& model, uint32_t seed, const EngineOptions& options = options_of(),
                      double tolerance = 1e-4) {
    const LoopReference reference(model);
    const auto engine = make_engine(model, options);
    const auto loops = static_cast<size_t>(model.topology.loops);
    std::mt19937 random(seed);
    struct Now {
        int32_t id;
        LoopReference::Sequence tokens;
        std::vector<size_t> done;
    };
    std::vector<Now> all;
    for (int i = 0; i < 3; ++i)
        all.push_back({engine->open(kContext).value(), {}, std::vector<size_t>(loops)});
    size_t compared = 0;
    for (int i = 0; i < 40; ++i) {
        std::vector<Row> rows;
        std::vector<std::vector<float>> expected;
        for (Now& now : all) {
            const std::vector<size_t> before = now.done;
            for (size_t s = 0; s < loops; ++s) {
                const size_t t = before[s];
                if (t >= (s == 0 ? static_cast<size_t>(kContext) : before[s - 1]) || random() % 4 == 0)
                    continue;
                Row row{
                    .sequence = now.id, .position = static_cast<int64_t>(t), .loop = static_cast<int32_t>(s)};
                ++now.done[s];
                if (s > 0 && random() % 2 == 0) {
                    row.work = Work::keys_only;
                    rows.push_back(row);
                    reference.keys_only(now.tokens, t, s);
                    // Of the loop behind as well, in the same step.
                    if (s + 1 < loops && before[s + 1] == t && random() % 2 == 0) {
                        ++row.loop;
                        rows.push_back(row);
                        reference.keys_only(now.tokens, t, s + 1);
                        ++now.done[++s];
                    }
                    continue;
                }
                if (s == 0)
                    row.token = static_cast<int32_t>(random() % static_cast<uint32_t>(model.config.n_vocab));
                row.logits = true;
                rows.push_back(row);
                // Loops are independent within a step, so the reference may go on at once.
                reference.run(now.tokens, t, s, row.token);
                expected.push_back(reference.logits(now.tokens[t], s));
            }
        }
        const auto logits = engine->step({.rows = rows}).logits;
        const auto n_vocab = static_cast<size_t>(model.config.n_vocab);
        ASSERT_EQ(logits.size(), expected.size() * n_vocab);
        for (size_t e = 0; e < expected.size(); ++e, ++compared)
            ASSERT_LE(scaled_difference(logits.subspan(e * n_vocab, n_vocab), expected[e]), tolerance)
                << "step " << i;
        for (Now& now : all) {
            for (size_t s = 1; s < loops; ++s) {
                const size_t t = now.done[s];
                if (t >= now.done[s - 1] || t != now.done.back() || random() % 3 > 0) continue;
                engine->share(now.id, static_cast<int64_t>(t), static_cast<int32_t>(s));
                reference.share(now.tokens, t, s);
                for (size_t later = s; later < loops; ++later) ++now.done[later];
            }
        }
    }
    EXPECT_GT(compared, 60U);
}

TEST(Depth, KeysOnlyAndSharedKeysAreTheReference) {
    for (uint32_t seed = 1; seed <= 6; ++seed)
        expect_reference(looped_model("llama", {.loops = 2 + seed % 2, .layers = 2}, seed), seed);
}

// Rows of all loops in one step, each through its own loop's map, and without one behind the last loop.
TEST(Depth, ExitMapsAndOutputsAreTheReference) {
    for (uint32_t seed = 1; seed <= 4; ++seed) {
        const LoopedShape shape{.loops = 2 + seed % 2,
                                .layers = 2,
                                .lora = seed > 2,
                                .exit_maps = seed != 3,
                                .exit_outputs = seed != 2};
        expect_reference(looped_model("llama", shape, seed), seed);
    }
}

TEST(Depth, OnADevice) {
    const EngineOptions options = on_tested_device(options_of());
    // CUDA multiplies in TF32.
    const double tolerance = tested_device().starts_with("cuda") ? 2e-2 : 1e-3;
    for (const auto& family : kExpressionFamilies) {
        for (const bool own : {false, true})
            expect_equal(family, looped_model(family, {.lora = own, .vectors = own}), options, tolerance);
    }
    const Model rounded =
        with_type(looped_model("llama", {.loops = 2, .rank = 32, .sizes = kBlocks}), DType::F16);
    expect_equal("rounded", rounded, on_tested_device(options_of(1, false)), 3e-2);
    expect_reference(looped_model("llama", {.loops = 3, .layers = 2}), 1, options, tolerance);
    expect_reference(looped_model("llama", {.exit_maps = true, .exit_outputs = true}), 2, options, tolerance);
}

// Steps of the short one also have queries for the long one, which does not run.
TEST(Depth, LongBesideShortOnADevice) {
    const Model model = looped_model("llama", {.loops = 2, .layers = 1});
    const auto n_vocab = static_cast<size_t>(model.config.n_vocab);
    const auto run = [&](Engine& engine, int32_t id, std::span<const int32_t> tokens, size_t chunk) {
        std::vector<float> logits;
        for (size_t first = 0; first < tokens.size(); first += chunk) {
            const size_t count = std::min(chunk, tokens.size() - first);
            for (int32_t loop = 0; loop < 2; ++loop) {
                std::vector<Row> rows;
                for (size_t t = first; t < first + count; ++t)
                    rows.push_back({.sequence = id,
                                    .position = static_cast<int64_t>(t),
                                    .loop = loop,
                                    .token = loop == 0 ? tokens[t] : -1,
                                    .logits = loop == 1});
                const auto all = engine.step({.rows = rows}).logits;
                if (loop == 1)
                    logits.insert(logits.end(), all.end() - static_cast<ptrdiff_t>(n_vocab), all.end());
            }
        }
        return logits;
    };
    EngineOptions options = options_of();
    options.context = 4096;
    options.kv_tokens = 8192;
    options.chunk = 128;
    const auto alone = make_engine(model, options), engine = make_engine(model, on_tested_device(options));
    const auto text = random_tokens(24, model.config.n_vocab, 1),
               other = random_tokens(3000, model.config.n_vocab, 2);
    const std::vector<float> expected = run(*alone, alone->open(32).value(), text, 1);
    run(*engine, engine->open(3000).value(), other, 128);
    EXPECT_LE(scaled_difference(run(*engine, engine->open(32).value(), text, 1), expected),
              tested_device().starts_with("cuda") ? 2e-2 : 1e-3);
}

TEST(Depth, ExitMapsOnSeveralThreads) {
    const Model model = looped_model("llama", {.exit_maps = true, .exit_outputs = true});
    const auto tokens = random_tokens(kContext, model.config.n_vocab, 1);
    const auto logits = [&](int threads) {
        const auto engine = make_engine(model, options_of(threads));
        const int32_t id = engine->open(kContext).value();
        std::vector<Row> rows;
        for (int64_t t = 0; t < kContext; ++t)
            rows.push_back(
                {.sequence = id, .position = t, .token = tokens[static_cast<size_t>(t)], .logits = true});
        const auto many = engine->step({.rows = rows}).logits;
        std::vector<float> out(many.begin(), many.end());
        const Row few{.sequence = id, .position = 0, .loop = 1, .logits = true};
        const auto one = engine->step({.rows = {&few, 1}}).logits;
        out.insert(out.end(), one.begin(), one.end());
        return out;
    };
    const auto expected = logits(1);
    for (const int threads : {2, 3}) EXPECT_LE(scaled_difference(logits(threads), expected), 1e-5) << threads;
}

// ---- what may not be ----

// Keys and values of exited tokens from weights in layouts of their own, beside the same as floats.
TEST(Depth, KeysAloneOfQuantizedWeights) {
    for (const DType type : {DType::Q8_0, DType::Q4_0}) {
        const Model model = with_type(looped_model("llama", {.loops = 2, .sizes = kBlocks}), type);
        const auto tokens = random_tokens(kContext, model.config.n_vocab, 1);
        // Of the last token, behind tokens that all exited after the first loop.
        const auto logits = [&](bool f32) {
            const auto engine = make_engine(model, options_of(1, f32));
            const int32_t id = engine->open(kContext).value();
            std::span<const float> out;
            for (int64_t t = 0; t < kContext; ++t) {
                const bool last = t + 1 == kContext;
                Row row{.sequence = id, .position = t, .token = tokens[static_cast<size_t>(t)]};
                engine->step({.rows = {&row, 1}});
                row.loop = 1;
                row.work = last ? Row::Work::run : Row::Work::keys_only;
                row.logits = last;
                out = engine->step({.rows = {&row, 1}}).logits;
            }
            return std::vector<float>(out.begin(), out.end());
        };
        const auto exact = logits(true), rounded = logits(false);
        const double size = mean_difference(exact, std::vector<float>(exact.size()));
        EXPECT_LE(mean_difference(rounded, exact), 0.05 * size) << refold::name(type);
    }
}

class DepthErrors : public testing::Test {
protected:
    void step(std::vector<Row> rows) { engine_->step({.rows = rows}); }
    Row row(int64_t position, int32_t loop, Work work = Work::run) const {
        return {
            .sequence = id_, .position = position, .loop = loop, .token = loop == 0 ? 1 : -1, .work = work};
    }
    void expect_refused(std::vector<Row> rows, const std::string& message) {
        EXPECT_THAT([&] { engine_->step({.rows = rows}); }, ThrowsMessage<Error>(HasSubstr(message)));
    }

    const Model model_ = looped_model("llama");
    const std::unique_ptr<Engine> engine_ = make_engine(model_, options_of());
    const int32_t id_ = engine_->open(8).value();
};

TEST_F(DepthErrors, RowsThatMayNotRun) {
    expect_refused({row(0, 1)}, "cannot run at loop 1: it needs a step at loop 0 before");
    expect_refused({row(1, 0)}, "the next token there is 0");
    expect_refused({row(0, 0, Work::keys_only)}, "keys only are of a residual stream");
    expect_refused({row(0, 0), row(0, 1)}, "it needs a step at loop 0 before");
    expect_refused({row(0, 3)}, "cannot run at loop 3: there are 3");
    step({row(0, 0), row(1, 0)});
    expect_refused({row(1, 0)}, "the next token there is 2");
    expect_refused({row(1, 1)}, "the next token there is 0");
    expect_refused({row(0, 2)}, "it needs a step at loop 1 before");
    // Refused steps change nothing.
    step({row(0, 1), row(1, 1)});
    step({row(0, 2)});
    expect_refused({row(0, 2, Work::keys_only)}, "the next token there is 1");
    Row asking = row(1, 2, Work::keys_only);
    asking.logits = true;
    expect_refused({asking}, "keys only have no logits");
    expect_refused({{.sequence = id_, .position = 2, .token = 99999}}, "not in the vocabulary");
}

TEST_F(DepthErrors, SharingAndCopying) {
    const auto share = [&](int64_t position, int32_t loop) { engine_->share(id_, position, loop); };
    EXPECT_THROW(share(0, 1), Error);
    step({row(0, 0), row(1, 0)});
    EXPECT_THROW(share(0, 0), Error);
    EXPECT_THROW(share(0, 2), Error);
    EXPECT_THROW(share(1, 1), Error);
    share(0, 1);
    EXPECT_THROW(share(0, 1), Error);
    const int32_t to = engine_->open(4).value();
    EXPECT_THROW(engine_->copy(id_, to, 2), Error);
    engine_->copy(id_, to, 1);
    EXPECT_THROW(engine_->truncate(id_, 3), Error);
    // The token that is on the way is forgotten.
    engine_->truncate(id_, 1);
    expect_refused({row(1, 1)}, "it needs a step at loop 0 before");
}

TEST(Depth, LoopsThatDifferInMore) {
    const auto refused = [](ExpressionBuilder b, const std::string& message) {
        EXPECT_THAT([&] { make_engine(b.finish(), options_of()); }, ThrowsMessage<Error>(HasSubstr(message)));
    };
    ExpressionBuilder other = looped_builder("llama", {}, 1);
    other.at(3, Slot::ffn_down) = Dense{other.own_tensor(3, Slot::ffn_down)};
    refused(other, "layer 3: ffn.down differs from layer 1's");
    ExpressionBuilder base = looped_builder("llama", {}, 1);
    std::get<Plus>(base.at(4, Slot::attn_q)).base = Dense{base.own_tensor(4, Slot::attn_q)};
    refused(base, "layer 4: attn.q differs");
    ExpressionBuilder slots = looped_builder("llama", {}, 1);
    slots.share_kv(3, 2);
    refused(slots, "layer 3: attn.k, which only one of them has");
    ExpressionBuilder source = looped_builder("llama", {}, 1);
    for (const size_t p : {1U, 3U, 5U}) source.share_kv(p, 0);
    refused(source, "layer 3: the layer that its attention comes from");
    ExpressionBuilder prefix = looped_builder("llama", {}, 1);
    prefix.prefix(2);
    refused(prefix, "attn.prefix_k differs");
    ExpressionBuilder vectors = looped_builder("llama", {}, 1);
    vectors.prefix(2, {Slot::attn_prefix});
    for (size_t p = 2; p < vectors.n_layer(); ++p) vectors.tie(p, p % 2, Slot::attn_prefix);
    refused(vectors, "which makes the prefix's keys and values, differs");
}

TEST(Depth, FasterWithLora) {
    EXPECT_TRUE(faster_by_loop(looped_model("llama")));
    EXPECT_FALSE(
        faster_by_loop(looped_model("llama", {.lora = false, .exit_maps = true, .exit_outputs = true})));
    EXPECT_FALSE(faster_by_loop(looped_model("llama", {.loops = 1, .layers = 2})));
    ExpressionBuilder other = looped_builder("llama", {}, 1);
    other.at(3, Slot::ffn_down) = Dense{other.own_tensor(3, Slot::ffn_down)};
    EXPECT_FALSE(faster_by_loop(other.finish()));
}

// A model without loops, and steps that run all loops.
TEST(Depth, OneLoop) {
    EngineOptions options = options_of();
    EXPECT_EQ(make_engine(looped_model("llama", {.loops = 1, .layers = 2}), options)->capabilities().loops,
              1);
    options.by_loop = false;
    EXPECT_EQ(make_engine(looped_model("llama"), options)->capabilities().loops, 1);
}

}  // namespace
}  // namespace refold
