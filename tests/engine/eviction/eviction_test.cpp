// KV eviction: the order in which rows leave, the engine against the definition with keys hidden by a plain
// re-implementation of the policies, memory and errors.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "core/code_of.h"
#include "core/error.h"
#include "engine/compare.h"
#include "engine/expression_models.h"
#include "engine/ggml/handles.h"
#include "engine/ggml/kept_rows.h"
#include "engine/synthetic_models.h"
#include "engine/tested_device.h"
#include "model/accounting.h"
#include "model/cache_groups.h"

namespace refold {
namespace {

constexpr double kTolerance = 1e-4;

EngineOptions options_of(const EvictionOptions& eviction, int64_t context, int64_t chunk = 512) {
    return {.threads = 1, .context = context, .chunk = chunk, .f32 = true, .eviction = eviction};
}

// ---- which rows ----

TEST(Eviction, RowsOfABudget) {
    const auto rows = [](double budget, int64_t context) {
        return EvictionOptions{.policy = KvPolicy::h2o, .budget = budget}.rows(context);
    };
    EXPECT_EQ(rows(0.2, 1024), 205);
    EXPECT_EQ(rows(0.07, 100), 7);
    EXPECT_EQ(rows(0.5, 9), 5);
    EXPECT_EQ(rows(1, 9), 9);
}

TEST(Eviction, HighestScoresAndMostRecent) {
    const EvictionOptions o{.policy = KvPolicy::h2o, .budget = 0.5, .recent = 0.5};
    const std::vector<float> scores = {5, 1, 4, 2, 3, 9, 0, 0, 0};
    using Rows = std::vector<int64_t>;
    EXPECT_EQ(rows_that_stay(o, 8, 6, scores), (Rows{0, 2, 4, 5, 6, 7}));
    // Half of 5 is 3 recent ones, and the scores of the last of them do not matter.
    EXPECT_EQ(rows_that_stay(o, 8, 5, scores), (Rows{0, 2, 5, 6, 7}));
    EXPECT_EQ(rows_that_stay({.policy = KvPolicy::h2o, .recent = 1}, 8, 3, scores), (Rows{5, 6, 7}));
    EXPECT_EQ(rows_that_stay({.policy = KvPolicy::h2o, .recent = 0}, 8, 3, scores), (Rows{0, 2, 5}));
    // Of equal ones the later.
    const std::vector<float> equal = {1, 2, 1, 1, 0};
    EXPECT_EQ(rows_that_stay({.policy = KvPolicy::h2o, .recent = 0}, 5, 3, equal), (Rows{1, 2, 3}));
}

TEST(Eviction, SinksAndMostRecent) {
    using Rows = std::vector<int64_t>;
    EXPECT_EQ(rows_that_stay({.policy = KvPolicy::recent, .sinks = 2}, 8, 5, {}), (Rows{0, 1, 5, 6, 7}));
    EXPECT_EQ(rows_that_stay({.policy = KvPolicy::recent, .sinks = 0}, 8, 3, {}), (Rows{5, 6, 7}));
}

// Two heads whose four rows begin with these probabilities, by token:
//   head 0: 1 | .5 .5 | .2 .7 .1 | .4 .1 .1 .4      sums 2.1 1.3 .2 .4: token 2 leaves
//   head 1: 1 | .1 .9 | .1 .1 .8 | .1 .2 .3 .4      sums 1.3 1.2 1.1 .4: token 3 leaves
// then one token after the other:
//   head 0: token 4 sees 0 1 3 4 by .1 .1 .1 .7     2.2 1.4 .5 .7: token 3 leaves
//           token 5 sees 0 1 4 5 by 0 0 .3 .7       2.2 1.4 1 .7: token 5 itself leaves
//   head 1: token 4 sees 0 1 2 4 by 0 0 0 1         1.3 1.2 1.1 1: token 4 itself leaves
//           token 5 sees 0 1 2 5 by 0 0 .7 .3       1.3 1.2 1.8 .3: token 5 itself leaves
TEST(Eviction, HandWorkedOrder) {
    ExpressionBuilder b("llama", 1, {.layers = 2, .head_dim = 4, .embd = 16});
    b.share_probabilities(1, 0);
    const Model model = b.finish();
    const EvictionPlan plan(model, {.policy = KvPolicy::h2o, .budget = 0.5, .recent = 0}, 8);
    ASSERT_EQ(plan.rows, 4);
    KeptRows kept(plan, model);
    const ggml_context_ptr context = [] { return ggml_context_ptr(ggml_init({1 << 20, nullptr, false})); }();
    // Keys and values of layer 0, values of layer 1; every row holds its token, times 10, and head.
    const std::vector<ggml_tensor*> caches = {ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, 4, 4, 4),
                                              ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, 4, 4, 2)};
    const auto row = [](ggml_tensor* cache, int64_t head, int64_t r) {
        return static_cast<float*>(cache->data) + (head * 4 + r) * 4;
    };
    const auto write = [&](int64_t token, int64_t r) {
        for (ggml_tensor* cache : caches)
            for (int64_t h = 0; h < cache->ne[2]; ++h)
                std::fill_n(row(cache, h, r), 4, static_cast<float>(10 * token + h));
    };
    // The tokens of a head's first rows, the same in all caches; -1 where they differ.
    const auto tokens = [&](int64_t head, int64_t count) {
        std::vector<int64_t> found;
        for (int64_t r = 0; r < count; ++r) {
            const auto token = static_cast<int64_t>(row(caches[0], head, r)[0]) / 10;
            bool same = true;
            for (ggml_tensor* cache : caches)
                for (int64_t h = head; h < cache->ne[2]; h += 2)
                    for (int64_t c = 0; c < 4; ++c)
                        same &= row(cache, h, r)[c] == static_cast<float>(10 * token + h);
            found.push_back(same ? token : -1);
        }
        return found;
    };
    using Tokens = std::vector<int64_t>;

    kept.make_room(4, caches);
    for (int64_t t = 0; t < 4; ++t) write(t, t);
    kept.add(0, std::vector<float>{2.1F, 1.3F, 0.2F, 0.4F, 7, 1.3F, 1.2F, 1.1F, 0.4F, 7}, 5, 4);
    kept.append(4);
    kept.make_room(1, caches);
    EXPECT_EQ(kept.used(), 3);
    EXPECT_EQ(tokens(0, 3), (Tokens{0, 1, 3}));
    EXPECT_EQ(tokens(1, 3), (Tokens{0, 1, 2}));
    write(4, 3);
    kept.add(0, std::vector<float>{0.1F, 0.1F, 0.1F, 0.7F, 0, 0, 0, 1}, 4, 1);
    kept.append(1);
    kept.make_room(1, caches);
    EXPECT_EQ(tokens(0, 3), (Tokens{0, 1, 4}));
    EXPECT_EQ(tokens(1, 3), (Tokens{0, 1, 2}));
    write(5, 3);
    kept.add(0, std::vector<float>{0, 0, 0.3F, 0.7F, 0, 0, 0.7F, 0.3F}, 4, 1);
    kept.append(1);
    kept.make_room(1, caches);
    EXPECT_EQ(tokens(0, 3), (Tokens{0, 1, 4}));
    EXPECT_EQ(tokens(1, 3), (Tokens{0, 1, 2}));
    // A new sequence knows nothing of this one.
    kept.clear();
    EXPECT_EQ(kept.used(), 0);
    kept.add(0, std::vector<float>{1, 2, 3, 4, 4, 3, 2, 1}, 4, 4);
    kept.append(4);
    for (int64_t t = 0; t < 4; ++t) write(t, t);
    kept.make_room(1, caches);
    EXPECT_EQ(tokens(0, 3), (Tokens{1, 2, 3}));
    EXPECT_EQ(tokens(1, 3), (Tokens{0, 1, 2}));
}

// ---- the engine against the definition ----

// The policies on the reference: token by token or in steps, it says which keys are hidden and runs the
// whole text so far.
class ReferenceEviction {
public:
    ReferenceEviction(const Model& model, const EvictionOptions& options, int64_t context)
        : model_(model), options_(options), rows_(static_cast<size_t>(options.rows(context))) {
        for (size_t p = 0; p < model.topology.layers.size(); ++p) {
            if (!model.topology.has(p, Slot::attn_o) || model.config.window(p) > 0) continue;
            if (model.topology.source(p).own())
                caches_[p].resize(static_cast<size_t>(model.config.n_head_kv_of(p)));
        }
    }

    // Logits [tokens, n_vocab] of the next tokens.
    std::vector<float> step(std::span<const int32_t> tokens) {
        const size_t first = input_.tokens.size();
        for (auto& [p, heads] : caches_)
            for (Head& head : heads) begin(head, first, tokens.size());
        input_.tokens.insert(input_.tokens.end(), tokens.begin(), tokens.end());
        input_.evicted = [&](size_t p, int64_t head, size_t query, size_t key) {
            const auto cache = caches_.find(model_.topology.source(p).kv.value_or(p));
            if (cache == caches_.end()) return false;
            const auto group = static_cast<size_t>(head / model_.config.q_per_kv());
            return key < query && !cache->second[group].seen[query].contains(key);
        };
        const reference::Output out = reference::run(model_, input_);
        for (const auto& [p, heads] : out.probabilities) {
            const auto cache = caches_.find(model_.topology.source(p).kv.value_or(p));
            if (cache == caches_.end()) continue;
            for (size_t h = 0; h < heads.size(); ++h) {
                Head& head = cache->second[h / static_cast<size_t>(model_.config.q_per_kv())];
                for (size_t query = first; query < input_.tokens.size(); ++query)
                    for (size_t key = 0; key <= query; ++key) head.scores[key] += heads[h][query][key];
            }
        }
        return reference::flat({out.logits.begin() + static_cast<ptrdiff_t>(first), out.logits.end()});
    }

    size_t evicted() const { return evicted_; }

private:
    struct Head {
        std::vector<size_t> kept;            // tokens
        std::vector<double> scores;          // by token
        std::vector<std::set<size_t>> seen;  // by query: keys
    };

    void begin(Head& head, size_t first, size_t count) {
        if (head.kept.size() + count > rows_) evict(head, rows_ - std::max(count, rows_ / 16));
        for (size_t t = first; t < first + count; ++t) {
            head.kept.push_back(t);
            head.scores.push_back(0);
            head.seen.emplace_back(head.kept.begin(), head.kept.end());
        }
    }

    void evict(Head& head, size_t keep) {
        const auto recent = static_cast<size_t>(std::ceil(options_.recent * static_cast<double>(keep)));
        while (head.kept.size() > keep) {
            ++evicted_;
            auto gone = head.kept.begin() + static_cast<ptrdiff_t>(options_.sinks);
            if (options_.policy == KvPolicy::h2o) {
                gone = std::min_element(head.kept.begin(), head.kept.end() - static_cast<ptrdiff_t>(recent),
                                        [&](size_t a, size_t b) { return head.scores[a] < head.scores[b]; });
            }
            head.kept.erase(gone);
        }
    }

    const Model& model_;
    EvictionOptions options_;
    size_t rows_;
    reference::Input input_;
    std::map<size_t, std::vector<Head>> caches_;
    size_t evicted_ = 0;
};

struct NamedModel {
    std::string name;
    Model model;
};

std::vector<NamedModel> models() {
    std::vector<NamedModel> all;
    const auto add = [&](const char* name, const char* family, auto&& change) {
        ExpressionBuilder b(family, static_cast<uint32_t>(all.size() + 1));
        change(b);
        all.push_back({fmt::format("{}, {}", family, name), b.finish()});
    };
    add("GQA", "llama", [](ExpressionBuilder&) {});
    add("learned positions", "gpt2", [](ExpressionBuilder&) {});
    add("superblock", "llama", [](ExpressionBuilder& b) { expressions::superblock(b); });
    add("CLA", "llama", [](ExpressionBuilder& b) {
        b.share_kv(1, 0);
        b.share_kv(3, 0);
    });
    add("both", "gptneox", [](ExpressionBuilder& b) {
        b.share_probabilities(1, 0);
        b.share_kv(2, 0);
        b.share_probabilities(3, 0);
    });
    add("layers without attention, or with fewer heads", "qwen2", [](ExpressionBuilder& b) {
        b.prune_heads(1, 1);
        b.prune_heads(2, 0);
    });
    all.push_back({"windows and soft caps", synthetic_model(synthetic::capped_windows())});
    all.push_back({"rotation", synthetic_model(synthetic::decoder(), 3)});
    return all;
}

std::vector<EvictionOptions> policies() {
    return {{.policy = KvPolicy::h2o, .budget = 0.5},
            {.policy = KvPolicy::h2o, .budget = 0.3, .recent = 0.2},
            {.policy = KvPolicy::recent, .budget = 0.5, .sinks = 2}};
}

constexpr int64_t kTokens = 22;

void expect_reference(const std::string& device, double tolerance) {
    for (const auto& [name, model] : models()) {
        const auto tokens = random_tokens(kTokens, model.config.n_vocab, 5);
        for (const EvictionOptions& policy : policies()) {
            ReferenceEviction expected(model, policy, kTokens);
            EngineOptions options = options_of(policy, kTokens);
            options.device = device;
            SingleSequence sequence(model, options);
            for (size_t t = 0; t < tokens.size(); ++t) {
                const auto token = std::span(tokens).subspan(t, 1);
                ASSERT_LE(scaled_difference(sequence.evaluate(token), expected.step(token)), tolerance)
                    << name << ", " << kv_policy_name(policy.policy) << " " << policy.budget << ", token "
                    << t;
            }
            EXPECT_GT(expected.evicted(), 10U) << name;
            EXPECT_EQ(sequence.length(), kTokens);
        }
    }
}

TEST(Eviction, TokenByTokenIsTheReference) { expect_reference("", kTolerance); }

TEST(Eviction, OnADevice) { expect_reference(tested_device(), 1e-3); }

// Steps are cut to a quarter of the rows; a new sequence starts afresh; only the last token's results may be
// asked for.
TEST(Eviction, ChunksAreTheReference) {
    for (const auto& [name, model] : models()) {
        const auto tokens = random_tokens(kTokens, model.config.n_vocab, 6);
        for (const EvictionOptions& policy : policies()) {
            for (const int64_t chunk : {2, 512}) {
                const size_t step =
                    std::min(static_cast<size_t>(chunk), static_cast<size_t>(policy.rows(kTokens) / 4));
                ReferenceEviction reference(model, policy, kTokens);
                std::vector<float> expected;
                for (size_t t = 0; t < tokens.size(); t += step) {
                    const auto part =
                        reference.step(std::span(tokens).subspan(t, std::min(step, tokens.size() - t)));
                    expected.insert(expected.end(), part.begin(), part.end());
                }
                SingleSequence sequence(model, options_of(policy, kTokens, chunk));
                const auto width = static_cast<size_t>(sequence.capabilities().n_vocab);
                for (const int repeat : {0, 1}) {
                    sequence.truncate(0);
                    std::vector<float> got;
                    sequence.evaluate_all(tokens, [&](size_t, std::span<const float> logits) {
                        got.insert(got.end(), logits.begin(), logits.end());
                    });
                    ASSERT_LE(scaled_difference(got, expected), kTolerance)
                        << name << ", " << kv_policy_name(policy.policy) << " " << policy.budget << ", chunk "
                        << chunk << ", time " << repeat;
                }
                sequence.truncate(0);
                ASSERT_LE(scaled_difference(sequence.evaluate(tokens), std::span(expected).last(width)),
                          kTolerance)
                    << name << ", " << kv_policy_name(policy.policy) << " " << policy.budget << ", chunk "
                    << chunk;
            }
        }
    }
}

// ---- nothing to evict ----

TEST(Eviction, WholeBudgetIsDense) {
    for (const auto& [name, model] : models()) {
        const auto tokens = random_tokens(kTokens, model.config.n_vocab, 7);
        for (const KvPolicy policy : {KvPolicy::h2o, KvPolicy::recent}) {
            for (const int64_t chunk : {1, 5, 64}) {
                const auto dense = all_logits(model, tokens, options_of({}, kTokens, chunk));
                const EvictionOptions whole{.policy = policy, .budget = 1};
                EXPECT_EQ(all_logits(model, tokens, options_of(whole, kTokens, chunk)), dense) << name;
            }
        }
    }
}

TEST(Eviction, RowsThatSufficeAreDense) {
    for (const auto& [name, model] : models()) {
        if (model.config.n_learned_positions > 0) continue;
        const auto tokens = random_tokens(kTokens, model.config.n_vocab, 7);
        for (const int64_t chunk : {1, 5}) {
            const auto dense = all_logits(model, tokens, options_of({}, 2 * kTokens, chunk));
            const auto with = [&](KvPolicy policy) {
                return all_logits(model, tokens,
                                  options_of({.policy = policy, .budget = 0.5}, 2 * kTokens, chunk));
            };
            EXPECT_EQ(with(KvPolicy::recent), dense) << name;
            EXPECT_LE(scaled_difference(with(KvPolicy::h2o), dense), 1e-5) << name;
        }
    }
}

// More rows than attention reads at once, by several threads.
TEST(Eviction, LongContexts) {
    constexpr size_t kLong = 640;
    const Model model = ExpressionBuilder("llama", 3).finish();
    const auto tokens = random_tokens(kLong, model.config.n_vocab, 8);
    for (const KvPolicy policy : {KvPolicy::h2o, KvPolicy::recent}) {
        EngineOptions options = options_of({.policy = policy, .budget = 0.45}, kLong, 64);
        const auto alone = all_logits(model, tokens, options);
        options.threads = 2;
        EXPECT_LE(scaled_difference(all_logits(model, tokens, options), alone), kTolerance);
        // Rows are few enough to matter.
        const auto dense = all_logits(model, tokens, options_of({}, kLong, 64));
        EXPECT_GT(scaled_difference(alone, dense), 1e-3);
        const size_t same = 256 * static_cast<size_t>(model.config.n_vocab);
        EXPECT_LE(scaled_difference(std::span(alone).first(same), std::span(dense).first(same)), 1e-5);
    }
}

// ---- memory ----

TEST(Eviction, MemoryIsTheAccountings) {
    constexpr int64_t kContext = 512;
    for (const auto& [name, model] : models()) {
        if (model.config.n_learned_positions > 0) continue;
        for (const EvictionOptions& policy : policies()) {
            for (const KvType type : {KvType::f16, KvType::f32}) {
                const SingleSequence sequence(
                    model, {.threads = 1, .context = kContext, .kv = type, .eviction = policy});
                const size_t bytes = type == KvType::f16 ? 2 : 4;
                const int64_t rows = policy.rows(kContext);
                // ggml rounds every tensor up to 32 bytes.
                const uint64_t expected = kv_bytes(model, kContext, rows, bytes);
                EXPECT_GE(sequence.memory().kv_bytes, expected) << name;
                EXPECT_LT(sequence.memory().kv_bytes, expected + 32 * model.topology.layers.size()) << name;
            }
        }
    }
}

TEST(Eviction, AccountingOfABudget) {
    const Model plain = ExpressionBuilder("llama").finish();
    EXPECT_EQ(kv_bytes(plain, 1000, 1000), 1000 * account(plain).model.kv_bytes_per_token);
    EXPECT_EQ(kv_bytes(plain, 1000, 200), 200 * account(plain).model.kv_bytes_per_token);
    // 4 layers of 2 key/value heads of 16, one of which has a window of 8.
    Model windowed = plain;
    windowed.config.windows = {0, 8, 0, 0};
    EXPECT_EQ(kv_bytes(windowed, 1000, 200), (3U * 200 + 1000) * 2 * 2 * 16 * 2);
}

TEST(Eviction, WindowsOfAllReadersCount) {
    ExpressionBuilder b("llama");
    b.share_kv(2, 0);
    b.share_probabilities(3, 1);
    Model model = b.finish();
    const auto all = [&] {
        std::vector<bool> out;
        for (size_t p = 0; p < 4; ++p) out.push_back(evictable(model, p));
        return out;
    };
    EXPECT_EQ(all(), (std::vector{true, true, true, true}));
    model.config.windows = {0, 0, 8, 8};
    // The reader's window counts for both; layer 3 has the window of its source: none.
    EXPECT_EQ(all(), (std::vector{false, true, false, true}));
    model.config.windows = {0, 8, 0, 0};
    EXPECT_EQ(all(), (std::vector{true, false, true, false}));
    const auto tokens = random_tokens(kTokens, model.config.n_vocab, 5);
    const EvictionOptions policy{.policy = KvPolicy::recent, .budget = 0.5, .sinks = 1};
    // One source and its reader with windows, the other without.
    model.config.windows = {8, 0, 8, 0};
    ReferenceEviction expected(model, policy, kTokens);
    SingleSequence sequence(model, options_of(policy, kTokens));
    for (const int32_t& token : tokens) {
        const std::span one(&token, 1);
        ASSERT_LE(scaled_difference(sequence.evaluate(one), expected.step(one)), kTolerance);
    }
}

// ---- errors ----

TEST(Eviction, Errors) {
    const Model model = ExpressionBuilder("llama").finish();
    const auto code = [](const Model& m, EvictionOptions eviction, int64_t context = 16) {
        return code_of([&] { SingleSequence sequence(m, options_of(eviction, context)); });
    };
    const auto usage = [&](EvictionOptions eviction) { EXPECT_EQ(code(model, eviction), ErrorCode::usage); };
    usage({.policy = KvPolicy::none, .budget = 0.5});
    usage({.policy = KvPolicy::h2o, .budget = 0});
    usage({.policy = KvPolicy::h2o, .budget = NAN});
    usage({.policy = KvPolicy::h2o, .budget = 0.5, .recent = 1.5});
    usage({.policy = KvPolicy::recent, .budget = 0.5, .sinks = -1});
    usage({.policy = KvPolicy::h2o, .budget = 0.05});                // one row
    usage({.policy = KvPolicy::recent, .budget = 0.5, .sinks = 6});  // 8 rows, of which 2 for a step
    EXPECT_NO_THROW(
        SingleSequence(model, options_of({.policy = KvPolicy::recent, .budget = 0.5, .sinks = 5}, 16)));
    EXPECT_NO_THROW(SingleSequence(model, options_of({.policy = KvPolicy::h2o, .budget = 0.1}, 16)));

    const EvictionOptions h2o{.policy = KvPolicy::h2o, .budget = 0.5};
    ExpressionBuilder prefixed("llama");
    prefixed.prefix(2);
    EXPECT_EQ(code(prefixed.finish(), h2o), ErrorCode::unsupported);
    EXPECT_EQ(code(synthetic_model(synthetic::alibi()), h2o), ErrorCode::unsupported);
    EXPECT_EQ(code(synthetic_model(synthetic::encoder()), h2o, 8), ErrorCode::unsupported);
    EngineOptions options = options_of(h2o, 16);
    options.kind = EngineKind::torch;
    EXPECT_EQ(code_of([&] { SingleSequence sequence(model, options); }), ErrorCode::unsupported);
    options.kind = EngineKind::ggml;
    options.range = LayerRange{0, 1};
    EXPECT_EQ(code_of([&] { SingleSequence sequence(model, options); }), ErrorCode::unsupported);
}

TEST(Eviction, TruncatesToNothingOnly) {
    const Model model = ExpressionBuilder("llama").finish();
    const auto tokens = random_tokens(12, model.config.n_vocab, 5);
    SingleSequence sequence(model, options_of({.policy = KvPolicy::h2o, .budget = 0.5}, 16));
    const auto first = sequence.evaluate(tokens);
    const std::vector<float> expected(first.begin(), first.end());
    EXPECT_EQ(code_of([&] { sequence.truncate(3); }), ErrorCode::usage);
    EXPECT_EQ(sequence.length(), 12);
    sequence.truncate(12);
    sequence.truncate(0);
    const auto again = sequence.evaluate(tokens);
    EXPECT_EQ(std::vector<float>(again.begin(), again.end()), expected);
    EXPECT_EQ(code_of([&] { sequence.evaluate(random_tokens(5, model.config.n_vocab, 5)); }),
              ErrorCode::input);
}

}  // namespace
}  // namespace refold
