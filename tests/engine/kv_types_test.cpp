// Types of the KV cache: memory, and logits near those of the float cache, whatever reads the cache.
#include <gtest/gtest.h>

#include <random>

#include "core/code_of.h"
#include "core/error.h"
#include "engine/compare.h"
#include "engine/expression_models.h"
#include "engine/synthetic_models.h"
#include "model/accounting.h"
#include "model/small_model.h"

namespace refold {
namespace {

constexpr int64_t kContext = 96;

// Heads of two blocks; a layer with the keys and values of another, one with its probabilities.
Model model_of_blocks() {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    return small_model({.layers = 5, .heads = 4, .kv_heads = 2, .head_dim = 64, .embd = 128, .vocab = 48},
                       [&](size_t, Slot, int64_t, int64_t) { return 0.08F * normal(random); });
}

Model with_shared_attention() {
    Model model = model_of_blocks();
    model.topology.sources[2].kv = 1;
    model.topology.sources[4].probabilities = 3;
    for (const Slot slot : {Slot::attn_k, Slot::attn_v}) model.topology.layers[2].erase(slot);
    for (const Slot slot : {Slot::attn_q, Slot::attn_k}) model.topology.layers[4].erase(slot);
    model.drop_unreferenced();
    validate(model);
    return model;
}

double distance(const Model& model, EngineOptions options, KvType type) {
    const auto tokens = random_tokens(80, model.config.n_vocab, 4);
    options.kv = KvType::f32;
    const auto exact = all_logits(model, tokens, options);
    options.kv = type;
    return scaled_difference(all_logits(model, tokens, options), exact);
}

TEST(KvTypes, LogitsAreNearThoseOfFloats) {
    for (const Model& model : {model_of_blocks(), with_shared_attention()}) {
        for (const int64_t chunk : {1, 80}) {
            for (const EvictionOptions& eviction :
                 {EvictionOptions{}, EvictionOptions{.policy = KvPolicy::h2o, .budget = 0.9}}) {
                const EngineOptions options{
                    .threads = 2, .context = kContext, .chunk = chunk, .eviction = eviction};
                const double eight = distance(model, options, KvType::q8_0),
                             four = distance(model, options, KvType::q4_0);
                EXPECT_GT(eight, 0) << chunk;
                EXPECT_LT(eight, 0.02) << chunk;
                EXPECT_LT(eight, four) << chunk;
                EXPECT_LT(four, 0.3) << chunk;
            }
        }
    }
}

TEST(KvTypes, SequencesOfABatch) {
    const Model model = model_of_blocks();
    const EngineOptions options{.threads = 1, .context = kContext, .kv = KvType::q8_0, .sequences = 3};
    const auto tokens = random_tokens(20, model.config.n_vocab, 9);
    EngineOptions alone = options;
    alone.sequences = 1;
    const auto expected = all_logits(model, tokens, alone);
    const auto engine = make_engine(model, options);
    for (int32_t i = 0; i < 2; ++i) {
        const int32_t id = engine->open(kContext).value();
        std::vector<Row> rows;
        for (size_t t = 0; t < tokens.size(); ++t)
            rows.push_back(
                {.sequence = id, .position = static_cast<int64_t>(t), .token = tokens[t], .logits = true});
        const StepOutput out = engine->step({.rows = rows});
        EXPECT_LT(scaled_difference(out.logits, expected), 1e-5) << i;
    }
}

TEST(KvTypes, Memory) {
    const Model model = model_of_blocks();
    const auto bytes = [&](KvType type) {
        return SingleSequence(model, {.threads = 1, .context = 256, .kv = type}).memory().kv_bytes;
    };
    EXPECT_EQ(bytes(KvType::f16), kv_bytes(model, 256, 256));
    EXPECT_EQ(bytes(KvType::q8_0) * 32, bytes(KvType::f16) * 17);
    EXPECT_EQ(bytes(KvType::q4_0) * 32, bytes(KvType::f16) * 9);
}

TEST(KvTypes, HeadsThatAreNoWholeBlocksAreRefused) {
    const Model model = ExpressionBuilder("llama").finish();
    EXPECT_EQ(
        code_of([&] { SingleSequence(model, {.threads = 1, .context = 64, .kv = KvType::q8_0}); }, "use f16"),
        ErrorCode::unsupported);
    for (const KvType type : {KvType::f16, KvType::f32, KvType::q8_0, KvType::q4_0})
        EXPECT_EQ(find_kv_type(kv_type_name(type)), type);
    EXPECT_EQ(find_kv_type("q8"), std::nullopt);
}

}  // namespace
}  // namespace refold
