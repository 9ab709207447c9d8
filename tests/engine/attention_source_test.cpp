// Attention that comes from other layers, ranges of layers and observers: both engines against the
// definition in reference.h.
#include <gtest/gtest.h>

#include <numeric>

#include "core/code_of.h"
#include "core/error.h"
#include "engine/compare.h"
#include "engine/expression_models.h"
#include "engine/synthetic_models.h"
#include "model/accounting.h"

namespace refold {
namespace {

constexpr double kTolerance = 1e-4;

std::vector<EngineKind> engines() {
    return has_torch_engine() ? std::vector{EngineKind::ggml, EngineKind::torch}
                              : std::vector{EngineKind::ggml};
}

EngineOptions options_of(int64_t chunk, EngineKind kind = EngineKind::ggml) {
    return {.kind = kind, .threads = 1, .chunk = chunk, .f32 = true};
}

std::vector<float> reference_logits(const Model& model, std::span<const int32_t> tokens) {
    const reference::Input input{{tokens.begin(), tokens.end()}, {}, {}};
    return reference::flat(reference::run(model, input).logits);
}

// Row `token` of values [tokens, n_vocab].
std::span<const float> row_of(const std::vector<float>& values, size_t token, int64_t width) {
    return std::span(values).subspan(token * static_cast<size_t>(width), static_cast<size_t>(width));
}

bool has_source_or_compensation(const Model& model) {
    bool found = !model.topology.sources.empty();
    for (const Slots& slots : model.topology.layers)
        for (const auto& [slot, expression] : slots) found |= is_compensation(slot);
    return found;
}

// ---- models ----

void compensate(Model& model, size_t p, Slot slot, uint32_t seed) {
    const std::string name = "p" + std::to_string(p) + "." + slot_name(slot);
    model.tensors[name] = RandomWeights(seed).tensor(slot_shape(slot, model.config, p), 0.0F, 0.3F);
    model.topology.layers[p][slot] = Dense{name};
}

// What no family of expression_models() has: ALiBi, windows, soft caps, norms of heads and outputs, other
// rotations. All have three layers.
std::vector<ExpressionModel> synthetic_source_models() {
    using Change = std::function<void(Model&)>;
    const std::vector<std::pair<const char*, Change>> changes = {
        {"one superblock",
         [](Model& m) {
             take_attention(m, 1, {0, std::nullopt});
             take_attention(m, 2, {0, std::nullopt});
             compensate(m, 1, Slot::attn_comp, 1);
         }},
        {"probabilities of the neighbor",
         [](Model& m) {
             take_attention(m, 2, {1, std::nullopt});
             for (const Slot slot : expressions::kCompensation)
                 compensate(m, 2, slot, static_cast<uint32_t>(slot));
         }},
        {"keys and values of one layer",
         [](Model& m) {
             take_attention(m, 1, {std::nullopt, 0});
             take_attention(m, 2, {std::nullopt, 0});
         }},
        {"keys and values of the neighbor",
         [](Model& m) {
             take_attention(m, 2, {std::nullopt, 1});
             compensate(m, 2, Slot::attn_comp_o, 1);
             compensate(m, 0, Slot::attn_comp_ffn, 2);
         }},
    };
    std::vector<ExpressionModel> models;
    for (const auto& [name, model, input] : synthetic_models()) {
        if (!model.config.causal) continue;
        for (const auto& [what, change] : changes) {
            models.push_back({name + ", " + what, model, input});
            change(models.back().model);
        }
    }
    return models;
}

std::vector<ExpressionModel> source_models() {
    std::vector<ExpressionModel> models = expression_models();
    std::erase_if(models, [](const auto& entry) { return !has_source_or_compensation(entry.model); });
    for (auto& entry : synthetic_source_models()) models.push_back(std::move(entry));
    for (const auto& family : kExpressionFamilies) {
        ExpressionBuilder b(family, 9);
        b.loop(4);
        b.share_kv(1, 0);
        b.share_probabilities(2, 0);
        b.share_kv(3, 0);
        models.push_back({family + ", attention of an earlier round", b.finish(), expression_input()});
    }
    for (uint32_t seed = 1; seed <= 24; ++seed) {
        Model model = random_expression_model(seed, {.sizes = true, .prefix = false, .sources = true});
        if (!has_source_or_compensation(model)) continue;
        models.push_back({fmt::format("seed {}", seed), std::move(model), expression_input()});
    }
    return models;
}

TEST(AttentionSource, ModelsCoverWhatThereIs) {
    size_t probabilities = 0, kv = 0, last = 0;
    std::map<Slot, size_t> compensation;
    for (const auto& [name, model, input] : source_models()) {
        for (const auto& [p, source] : model.topology.sources) {
            probabilities += source.probabilities.has_value();
            kv += source.kv.has_value();
            last += source.probabilities && p + 1 == model.topology.layers.size();
        }
        for (const Slots& slots : model.topology.layers)
            for (const auto& [slot, expression] : slots) compensation[slot] += is_compensation(slot);
    }
    for (const size_t count : {probabilities, kv, last}) EXPECT_GT(count, 20U);
    for (const Slot slot : expressions::kCompensation) EXPECT_GT(compensation[slot], 10U) << slot_name(slot);
}

// ---- both engines ----

// Every token alone, chunks that do and do not divide the tokens, and all at once.
TEST(AttentionSource, EnginesAreTheReference) {
    for (const auto& [name, model, input] : source_models()) {
        const auto expected = reference_logits(model, input.tokens);
        for (const EngineKind kind : engines()) {
            for (const int64_t chunk : {1, 3, 5, 9}) {
                EXPECT_LE(
                    scaled_difference(all_logits(model, input.tokens, options_of(chunk, kind)), expected),
                    kTolerance)
                    << name << ", engine " << static_cast<int>(kind) << ", chunk " << chunk;
            }
        }
    }
}

// Only the last token's results leave the last layer, which may be one that borrows.
TEST(AttentionSource, LastTokenThenTokenByToken) {
    for (const auto& [name, model, input] : source_models()) {
        // Another rotation for every length of the sequence: earlier tokens keep theirs.
        if (model.config.rope.stretches(1 << 20)) continue;
        const auto expected = reference_logits(model, input.tokens);
        const std::span tokens(input.tokens);
        for (const EngineKind kind : engines()) {
            for (const int64_t chunk : {2, 9}) {
                EngineOptions options = options_of(chunk, kind);
                options.context = static_cast<int64_t>(tokens.size());
                SingleSequence sequence(model, options);
                const auto check = [&](std::span<const float> logits, size_t token) {
                    EXPECT_LE(
                        scaled_difference(logits, row_of(expected, token, sequence.capabilities().n_vocab)),
                        kTolerance)
                        << name << ", engine " << static_cast<int>(kind) << ", chunk " << chunk << ", token "
                        << token;
                };
                check(sequence.evaluate(tokens.first(6)), 5);
                for (size_t t = 6; t < tokens.size(); ++t) check(sequence.evaluate(tokens.subspan(t, 1)), t);
                sequence.truncate(4);
                check(sequence.evaluate(tokens.subspan(4)), tokens.size() - 1);
            }
        }
    }
}

// Longer than the steps in which the cache is read.
TEST(AttentionSource, LongContexts) {
    for (const char* family : {"llama", "gpt2"}) {
        ExpressionBuilder b(family, 4);
        b.share_probabilities(1, 0);
        b.share_kv(2, 0);
        b.share_probabilities(3, 0);
        b.compensate(3, Slot::attn_comp_v);
        // Learned positions end at 64.
        const size_t count = b.model.config.n_learned_positions > 0 ? 60 : 300;
        const Model model = b.finish();
        const auto tokens = random_tokens(count, model.config.n_vocab, 3);
        const auto expected = reference_logits(model, tokens);
        for (const EngineKind kind : engines()) {
            for (const int64_t chunk : {300, 128, 37}) {
                EngineOptions options = options_of(chunk, kind);
                EXPECT_LE(scaled_difference(all_logits(model, tokens, options), expected), kTolerance)
                    << family << " " << chunk;
                options.context = static_cast<int64_t>(count);
                SingleSequence sequence(model, options);
                sequence.evaluate(std::span(tokens).first(count - 1));
                const auto last = sequence.evaluate(std::span(tokens).last(1));
                EXPECT_LE(
                    scaled_difference(last, row_of(expected, count - 1, sequence.capabilities().n_vocab)),
                    kTolerance);
            }
        }
    }
}

TEST(AttentionSource, ThreadsAndHalfPrecisionCache) {
    for (const char* family : {"llama", "gptneox"}) {
        ExpressionBuilder b(family, 5);
        expressions::superblock(b);
        b.compensate(2, Slot::attn_comp);
        const Model model = b.finish();
        const auto tokens = random_tokens(7, model.config.n_vocab, 3);
        const auto expected = reference_logits(model, tokens);
        for (const int64_t chunk : {1, 7}) {
            EngineOptions options = options_of(chunk);
            options.threads = 2;
            EXPECT_LE(scaled_difference(all_logits(model, tokens, options), expected), kTolerance);
            options.f32 = false;
            EXPECT_LE(scaled_difference(all_logits(model, tokens, options), expected), 1e-2);
        }
    }
}

// ---- memory ----

TEST(AttentionSource, CacheIsTheAccountings) {
    constexpr int64_t kContext = 256;
    for (const auto& [name, model, input] : source_models()) {
        if (model.family == nullptr || model.config.n_learned_positions > 0) continue;
        for (const auto& [kv, bytes] : {std::pair(KvType::f16, 2U), std::pair(KvType::f32, 4U)}) {
            const EngineOptions options{.threads = 1, .context = kContext, .kv = kv};
            EXPECT_EQ(SingleSequence(model, options).memory().kv_bytes,
                      kContext * account(model, bytes).model.kv_bytes_per_token)
                << name;
        }
        for (const EngineKind kind : engines()) {
            EngineOptions options = options_of(64, kind);
            options.context = kContext;
            SingleSequence sequence(model, options);
            sequence.evaluate(input.tokens);
            EXPECT_EQ(sequence.memory().kv_bytes, kContext * account(model, 4).model.kv_bytes_per_token)
                << name << ", engine " << static_cast<int>(kind);
        }
    }
}

TEST(AttentionSource, CacheByHand) {
    const auto bytes = [](const std::function<void(ExpressionBuilder&)>& change) {
        ExpressionBuilder b("llama");
        change(b);
        return SingleSequence(b.finish(), {.threads = 1, .context = 256, .kv = KvType::f32})
            .memory()
            .kv_bytes;
    };
    // Four layers of two heads of 16 keys and 16 values.
    const uint64_t layer = uint64_t{256} * 2 * 2 * 16 * sizeof(float);
    EXPECT_EQ(bytes([](ExpressionBuilder&) {}), 4 * layer);
    EXPECT_EQ(bytes(expressions::superblock), layer + 3 * layer / 2);
    EXPECT_EQ(bytes([](ExpressionBuilder& b) {
                  b.share_kv(1, 0);
                  b.share_kv(3, 2);
              }),
              2 * layer);
    EXPECT_EQ(bytes([](ExpressionBuilder& b) {
                  b.prune_heads(0, 1);
                  b.prune_heads(1, 1);
                  b.share_probabilities(1, 0);
                  b.share_kv(3, 2);
              }),
              layer / 2 + layer / 4 + layer);
}

// ---- what sharing must not change ----

void fill(Model& model, const std::string& name, float value) {
    Tensor& tensor = model.tensors.at(name);
    const std::vector<float> values(static_cast<size_t>(tensor.elements()), value);
    tensor.produce = [bytes = quantize(DType::F32, values, tensor.row_elements())] { return bytes; };
}

// Layer 0 adds nothing to the residual stream, so layer 1 has its input; `slots` are layer 0's.
Model with_equal_inputs(const std::string& family, const std::vector<Slot>& slots) {
    ExpressionBuilder b(family, 7);
    for (const Slot slot : {Slot::attn_o, Slot::attn_o_bias, Slot::ffn_down, Slot::ffn_down_bias}) {
        if (b.model.topology.has(0, slot)) fill(b.model, b.own_tensor(0, slot), 0);
    }
    for (const Slot slot : slots) {
        for (const auto& entry : {std::optional(slot), bias_of(slot)})
            if (entry && b.model.topology.has(1, *entry)) b.tie(1, 0, *entry);
    }
    return b.finish();
}

TEST(AttentionSource, UnifyingEqualScoresChangesNothing) {
    for (const auto& family : kExpressionFamilies) {
        const Model own = with_equal_inputs(family, {Slot::attn_norm, Slot::attn_q, Slot::attn_k});
        Model unified = own;
        take_attention(unified, 1, {0, std::nullopt});
        const auto tokens = random_tokens(20, own.config.n_vocab, 3);
        for (const EngineKind kind : engines()) {
            for (const int64_t chunk : {1, 7, 20}) {
                const EngineOptions options = options_of(chunk, kind);
                EXPECT_LE(
                    scaled_difference(all_logits(unified, tokens, options), all_logits(own, tokens, options)),
                    1e-5)
                    << family << " " << chunk;
            }
        }
        // Layer 2 has another input: there it changes much.
        Model other = own;
        take_attention(other, 2, {0, std::nullopt});
        EXPECT_GT(scaled_difference(reference_logits(other, tokens), reference_logits(own, tokens)), 1e-2);
    }
}

TEST(AttentionSource, BorrowingEqualKeysAndValuesChangesNothing) {
    for (const auto& family : kExpressionFamilies) {
        const Model own = with_equal_inputs(family, {Slot::attn_norm, Slot::attn_k, Slot::attn_v});
        Model borrowing = own;
        take_attention(borrowing, 1, {std::nullopt, 0});
        const auto tokens = random_tokens(20, own.config.n_vocab, 3);
        for (const EngineKind kind : engines()) {
            for (const int64_t chunk : {1, 7, 20}) {
                const EngineOptions options = options_of(chunk, kind);
                EXPECT_LE(scaled_difference(all_logits(borrowing, tokens, options),
                                            all_logits(own, tokens, options)),
                          1e-5)
                    << family << " " << chunk;
            }
        }
    }
}

TEST(AttentionSource, CompensationByZeroChangesNothing) {
    for (const auto& family : kExpressionFamilies) {
        ExpressionBuilder b(family, 8);
        b.share_probabilities(2, 1);
        const Model plain = b.finish();
        for (const Slot slot : expressions::kCompensation) {
            b.compensate(2, slot);
            fill(b.model, b.own_tensor(2, slot), 0);
        }
        const Model zero = b.finish();
        const auto tokens = random_tokens(9, plain.config.n_vocab, 3);
        for (const EngineKind kind : engines()) {
            const EngineOptions options = options_of(4, kind);
            EXPECT_EQ(all_logits(zero, tokens, options), all_logits(plain, tokens, options)) << family;
        }
    }
}

// ---- ranges ----

std::vector<ExpressionModel> all_decoders() {
    std::vector<ExpressionModel> models = expression_models();
    for (auto& entry : synthetic_source_models()) models.push_back(std::move(entry));
    for (const auto& [name, model, input] : synthetic_models())
        if (model.config.causal) models.push_back({name, model, input});
    // Their layers do not run apart.
    std::erase_if(models, [](const auto& entry) { return entry.model.config.n_stream > 1; });
    return models;
}

// Where the layers can be cut: no source is on the other side.
std::vector<size_t> cuts_of(const Model& model) {
    std::vector<size_t> cuts;
    for (size_t cut = 0; cut <= model.topology.layers.size(); ++cut) {
        const auto& sources = model.topology.sources;
        if (std::none_of(sources.begin(), sources.end(), [&](const auto& entry) {
                const auto& [p, source] = entry;
                return p >= cut && source.from(p) < cut;
            }))
            cuts.push_back(cut);
    }
    return cuts;
}

// Rows as they come.
class Collected {
public:
    explicit Collected(int64_t width) : width_(static_cast<size_t>(width)) {}
    SingleSequence::RowsSink sink() {
        return [this](size_t first, std::span<const float> rows) {
            EXPECT_EQ(first * width_, values.size());
            values.insert(values.end(), rows.begin(), rows.end());
        };
    }
    std::vector<float> values;

private:
    size_t width_;
};

std::vector<float> run_range(const Model& model, LayerRange range, int64_t chunk, const auto& input) {
    EngineOptions options = options_of(chunk);
    options.range = range;
    options.context = 16;
    SingleSequence sequence(model, options);
    Collected out(model.config.n_embd);
    sequence.evaluate_range(input, out.sink());
    return out.values;
}

TEST(Ranges, InAChainAreTheWhole) {
    for (const auto& [name, model, input] : all_decoders()) {
        const auto expected = reference::run(model, input);
        const std::span<const int32_t> tokens(input.tokens);
        for (const int64_t chunk : {1, 4, 16}) {
            SCOPED_TRACE(name + ", chunk " + std::to_string(chunk));
            // The embeddings.
            std::vector<float> residual = run_range(model, {0, 0}, chunk, tokens);
            EXPECT_LE(
                scaled_difference(residual, reference::flat(expected.taps.at({size_t{0}, Tap::layer_input}))),
                kTolerance);
            const auto cuts = cuts_of(model);
            for (size_t c = 1; c < cuts.size(); ++c) {
                const LayerRange range{cuts[c - 1], cuts[c]};
                residual = run_range(model, range, chunk, std::span<const float>(residual));
                const reference::Matrix& behind = range.last == model.topology.layers.size()
                                                      ? expected.residual
                                                      : expected.taps.at({range.last, Tap::layer_input});
                EXPECT_LE(scaled_difference(residual, reference::flat(behind)), kTolerance)
                    << range.first << " to " << range.last;
            }
            const LayerRange whole{0, model.topology.layers.size()};
            EXPECT_LE(
                scaled_difference(run_range(model, whole, chunk, tokens), reference::flat(expected.residual)),
                kTolerance);
        }
    }
}

TEST(Ranges, LoadOnlyWhatTheyRun) {
    ExpressionBuilder b("llama");
    b.share_kv(2, 1);
    const Model model = b.finish();
    const auto memory = [&](LayerRange range) {
        EngineOptions options = options_of(16);
        options.range = range;
        options.context = 256;
        return SingleSequence(model, options).memory();
    };
    uint64_t layer = 0;
    for (const auto& [slot, expression] : model.topology.layers[3])
        layer += model.tensor(std::get<Dense>(expression).tensor).bytes();
    EXPECT_EQ(memory({3, 4}).weight_bytes, layer);
    const uint64_t kv = uint64_t{256} * 2 * 2 * 16 * sizeof(float);
    EXPECT_EQ(memory({3, 4}).kv_bytes, kv);
    EXPECT_EQ(memory({1, 3}).kv_bytes, kv);
    EXPECT_EQ(memory({0, 0}).kv_bytes, 0U);
    EXPECT_EQ(memory({0, 0}).weight_bytes, model.tensor("token_embd.weight").bytes());
}

TEST(Ranges, MisuseIsRefused) {
    ExpressionBuilder b("llama");
    b.share_probabilities(2, 0);
    const Model model = b.finish();
    const auto ignore = [](size_t, std::span<const float>) {};
    const std::vector<int32_t> tokens = {1, 2, 3};
    const std::vector<float> rows(3 * 64), short_rows(65);
    EngineOptions options = options_of(4);
    options.context = 8;
    SingleSequence whole(model, options);
    EXPECT_EQ(code_of([&] { whole.evaluate_range(std::span(rows), ignore); }), ErrorCode::internal);
    options.range = LayerRange{3, 4};
    SingleSequence part(model, options);
    EXPECT_EQ(code_of([&] { part.evaluate_range(std::span(tokens), ignore); }), ErrorCode::internal);
    EXPECT_EQ(code_of([&] { part.evaluate_range(std::span(short_rows), ignore); }), ErrorCode::internal);
    EXPECT_EQ(code_of([&] { part.evaluate(tokens); }), ErrorCode::internal);
    EXPECT_EQ(code_of([&] { part.evaluate_all(tokens, ignore); }), ErrorCode::internal);
    const std::vector<float> too_many(9 * 64);
    EXPECT_EQ(code_of([&] { part.evaluate_range(std::span(too_many), ignore); }), ErrorCode::input);
    options.range = LayerRange{1, 3};
    EXPECT_EQ(code_of([&] { SingleSequence sequence(model, options); }), ErrorCode::internal);
}

// ---- observers ----

constexpr std::array kTaps = {Tap::layer_input,
                              Tap::attn_input,
                              Tap::q,
                              Tap::k,
                              Tap::v,
                              Tap::probabilities,
                              Tap::attn_inner,
                              Tap::attn_projected,
                              Tap::attn_output,
                              Tap::residual,
                              Tap::ffn_input,
                              Tap::ffn_inner,
                              Tap::ffn_projected,
                              Tap::ffn_output};

// Compares what is seen with the reference, step by step.
class Watch {
public:
    Watch(const Model& model, const reference::Input& input)
        : causal_(model.config.causal),
          prefix_(model.config.n_prefix),
          n_tokens_(input.tokens.size()),
          expected_(reference::run(model, input).taps) {
        auto all = std::make_shared<Observer>();
        for (size_t p = 0; p < model.topology.layers.size(); ++p)
            for (const Tap tap : kTaps) all->taps.insert({p, tap});
        all->taps.insert({kWholeModel, Tap::logits});
        all->see = [this](const Tapped& seen) { see(seen); };
        observer = std::move(all);
    }
    std::shared_ptr<const Observer> observer;

    // Tokens whose results were shown last, by place.
    std::map<std::pair<size_t, Tap>, std::pair<int64_t, int64_t>> tokens;

    void expect_all_seen() const {
        for (const auto& [place, rows] : expected_) {
            // Of decoders alone.
            const bool shown = place.second != Tap::probabilities || causal_;
            EXPECT_EQ(tokens.contains(place), shown) << place.first << " " << tap_name(place.second);
        }
    }

private:
    void see(const Tapped& seen) {
        SCOPED_TRACE(fmt::format("layer {} {}", seen.layer, tap_name(seen.tap)));
        const auto found = expected_.find({seen.layer, seen.tap});
        ASSERT_NE(found, expected_.end());
        const reference::Matrix& rows = found->second;
        const bool matrices = seen.tap == Tap::probabilities;
        const size_t heads = rows.size() / n_tokens_, count = static_cast<size_t>(seen.tokens),
                     features = static_cast<size_t>(seen.features),
                     first = static_cast<size_t>(seen.first_token);
        ASSERT_EQ(seen.features, matrices ? prefix_ + seen.first_token + seen.tokens
                                          : static_cast<int64_t>(rows.front().size()));
        ASSERT_EQ(seen.values.size(), heads * count * features);
        std::vector<float> expected;
        for (size_t h = 0; h < heads; ++h)
            for (size_t t = first; t < first + count; ++t) {
                const reference::Vector& row = rows[h * n_tokens_ + t];
                expected.insert(expected.end(), row.begin(), row.begin() + seen.features);
            }
        EXPECT_LE(scaled_difference(seen.values, expected), kTolerance);
        tokens[{seen.layer, seen.tap}] = {seen.first_token, seen.tokens};
        // In the order of the forward pass: the logits last.
        if (seen.tap == Tap::layer_input && seen.layer == 0) last_layer_ = 0;
        EXPECT_GE(seen.layer, last_layer_);
        last_layer_ = seen.layer;
    }

    bool causal_;
    int64_t prefix_;
    size_t n_tokens_;
    reference::Taps expected_;
    size_t last_layer_ = 0;
};

TEST(Observers, SeeWhatTheReferenceComputes) {
    for (const auto& [name, model, input] : all_decoders()) {
        for (const int64_t chunk : {1, 4, 9}) {
            SCOPED_TRACE(name + ", chunk " + std::to_string(chunk));
            Watch watch(model, input);
            EngineOptions options = options_of(chunk);
            options.observer = watch.observer;
            const auto logits = all_logits(model, input.tokens, options);
            watch.expect_all_seen();
            // Looking changes nothing.
            EXPECT_LE(scaled_difference(logits, reference_logits(model, input.tokens)), kTolerance);
        }
    }
}

TEST(Observers, SeeEncoders) {
    size_t encoders = 0;
    for (const auto& [name, model, input] : synthetic_models()) {
        // Padding attends to what its implementation likes; nobody reads it.
        if (model.config.causal || !input.mask.empty()) continue;
        SCOPED_TRACE(name);
        Watch watch(model, input);
        EngineOptions options = options_of(64);
        options.context = 16;
        options.observer = watch.observer;
        SingleSequence(model, options).encode({input.tokens, input.token_types, input.mask});
        watch.expect_all_seen();
        ++encoders;
    }
    EXPECT_GT(encoders, 0U);
}

// Before attention leaves the last layer all tokens are shown, behind it those whose results are wanted.
TEST(Observers, TokensOfTheLastLayer) {
    ExpressionBuilder b("llama");
    b.share_probabilities(3, 1);
    const Model model = b.finish();
    const reference::Input input = expression_input();
    Watch watch(model, input);
    EngineOptions options = options_of(9);
    options.context = 16;
    options.observer = watch.observer;
    SingleSequence(model, options).evaluate(input.tokens);
    watch.expect_all_seen();
    const std::pair<int64_t, int64_t> all{0, 9}, last{8, 1};
    for (const Tap tap : {Tap::layer_input, Tap::attn_input, Tap::v}) {
        const std::pair place(size_t{3}, tap);
        EXPECT_EQ(watch.tokens.at(place), all) << tap_name(tap);
    }
    for (const Tap tap : {Tap::attn_inner, Tap::attn_output, Tap::residual, Tap::ffn_inner}) {
        const std::pair place(size_t{3}, tap);
        EXPECT_EQ(watch.tokens.at(place), last) << tap_name(tap);
    }
    const std::pair logits(kWholeModel, Tap::logits), lent(size_t{1}, Tap::probabilities);
    EXPECT_EQ(watch.tokens.at(logits), last);
    EXPECT_EQ(watch.tokens.at(lent), all);
}

TEST(Observers, SeeOnlyWhatIsAskedFor) {
    ExpressionBuilder b("llama");
    const Model model = b.finish();
    auto observer = std::make_shared<Observer>();
    observer->taps = {{2, Tap::attn_input}};
    int seen = 0;
    observer->see = [&](const Tapped& tapped) {
        ++seen;
        EXPECT_EQ(tapped.layer, 2U);
        EXPECT_EQ(tapped.tap, Tap::attn_input);
    };
    EngineOptions options = options_of(4);
    options.observer = observer;
    all_logits(model, expression_input().tokens, options);
    EXPECT_EQ(seen, 3);
    // In a range, too.
    options.range = LayerRange{1, 3};
    options.context = 8;
    SingleSequence(model, options)
        .evaluate_range(std::span<const float>(std::vector<float>(6 * 64, 0.5F)),
                        [](size_t, std::span<const float>) {});
    EXPECT_EQ(seen, 5);
}

}  // namespace
}  // namespace refold
