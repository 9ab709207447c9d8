#include <nlohmann/json.hpp>

#include "compress/loop_fixtures.h"
#include "compress/looping/conversion.h"
#include "compress/looping/norm_folding.h"
#include "model/prefix_rows.h"
#include "model/save.h"
#include "model/validate.h"
#include "model/without_sharing.h"
#include "train/trained.h"

namespace refold {
namespace {

using namespace recursive;
using Layers = std::vector<size_t>;
using Sources = std::vector<Layers>;

Plan plan_of(size_t layers, int64_t loops, Tying tying, Init init) {
    return make_plan(layers, {.loops = loops, .tying = tying, .init = init});
}

TEST(RecursivePlan, TyingByHand) {
    EXPECT_EQ(plan_of(6, 3, Tying::cycle, Init::lower).stored, (Layers{0, 1, 0, 1, 0, 1}));
    EXPECT_EQ(plan_of(6, 3, Tying::sequence, Init::lower).stored, (Layers{0, 0, 0, 1, 1, 1}));
    EXPECT_EQ(plan_of(6, 3, Tying::cycle_rev, Init::lower).stored, (Layers{0, 1, 1, 0, 0, 1}));
    EXPECT_EQ(plan_of(6, 2, Tying::cycle_rev, Init::lower).stored, (Layers{0, 1, 2, 2, 1, 0}));
    EXPECT_EQ(plan_of(4, 1, Tying::cycle, Init::lower).stored, (Layers{0, 1, 2, 3}));
}

TEST(RecursivePlan, SourcesByHand) {
    EXPECT_EQ(plan_of(6, 3, Tying::cycle, Init::average).sources, (Sources{{0, 2, 4}, {1, 3, 5}}));
    EXPECT_EQ(plan_of(6, 3, Tying::sequence, Init::average).sources, (Sources{{0, 1, 2}, {3, 4, 5}}));
    EXPECT_EQ(plan_of(6, 3, Tying::cycle_rev, Init::average).sources, (Sources{{0, 3, 4}, {1, 2, 5}}));
    EXPECT_EQ(plan_of(6, 3, Tying::sequence, Init::lower).sources, (Sources{{0}, {1}}));
    EXPECT_EQ(plan_of(6, 3, Tying::cycle, Init::random).sources, (Sources{{}, {}}));
}

// Of the 30 layers of SmolLM2-135M and the 18 of Gemma 2B: floor(k (L - 1) / (K - 1) + 1/2).
TEST(RecursivePlan, StepwiseKeepsFirstAndLastAndRoundsHalvesUp) {
    Layers sources;
    for (const auto& from : plan_of(30, 2, Tying::cycle, Init::stepwise).sources)
        sources.push_back(from.at(0));
    EXPECT_EQ(sources, (Layers{0, 2, 4, 6, 8, 10, 12, 15, 17, 19, 21, 23, 25, 27, 29}));
    EXPECT_EQ(plan_of(18, 3, Tying::cycle, Init::stepwise).sources,
              (Sources{{0}, {3}, {7}, {10}, {14}, {17}}));
    EXPECT_EQ(plan_of(4, 4, Tying::cycle, Init::stepwise).sources, (Sources{{0}}));
}

TEST(RecursivePlan, LoopsMustDivide) {
    expect_error(ErrorCode::usage, {"'loops'", "4 does not divide the 6 layers", "1, 2, 3, 6"},
                 [] { plan_of(6, 4, Tying::cycle, Init::lower); });
}

constexpr SmallShape kSix{.layers = 6, .ff = 8};

TEST(Recursive, CopiedLayersKeepTheirBytesAndType) {
    const SmallShape shape{.layers = 4, .heads = 2, .kv_heads = 1, .head_dim = 32, .embd = 64, .ff = 64};
    const Model model =
        small_model(shape, scattered, {{Slot::attn_q, DType::Q8_0}, {Slot::ffn_up, DType::Q4_0}});
    const Model out = plan_method(model, "recursive", {"loops=2"}).model;
    EXPECT_EQ(out.topology.loops, 2);
    EXPECT_EQ(out.topology.layers.size(), 4u);
    EXPECT_EQ(out.tensors.size(), 2u * 9 + 2);
    for (const auto& [slot, expression] : model.topology.layers[0]) {
        for (size_t p = 0; p < 4; ++p) {
            const size_t source = p % 2 == 0 ? 0 : 3;
            EXPECT_EQ(tensor_of(out, p, slot), tensor_name(*model.family, slot, p % 2));
            EXPECT_EQ(out.tensor(tensor_of(out, p, slot)).type,
                      model.tensor(tensor_of(model, source, slot)).type);
            EXPECT_EQ(bytes_of(out, tensor_of(out, p, slot)), bytes_of(model, tensor_of(model, source, slot)))
                << p << slot_name(slot);
        }
    }
    EXPECT_EQ(out.topology.globals, model.topology.globals);
    saved_and_loaded(out);
}

TEST(Recursive, AverageIsTheMeanOfTheTied) {
    const Model model = small_model(kSix, scattered);
    for (const auto& [tying, members] : {std::pair{"cycle", Sources{{0, 2, 4}, {1, 3, 5}}},
                                         {"sequence", Sources{{0, 1, 2}, {3, 4, 5}}},
                                         {"cycle_rev", Sources{{0, 3, 4}, {1, 2, 5}}}}) {
        const Model out =
            plan_method(model, "recursive", {"loops=3", "init=average", std::string("tying=") + tying}).model;
        EXPECT_EQ(out.topology.loops, tying == std::string("sequence") ? 1 : 3);
        for (const auto& tied : members) {
            for (const Slot slot : {Slot::attn_q, Slot::attn_o, Slot::ffn_down, Slot::attn_norm}) {
                std::vector<float> mean(weight(model, 0, slot).size());
                for (const size_t p : tied) {
                    const auto own = weight(model, p, slot);
                    for (size_t i = 0; i < mean.size(); ++i) mean[i] += own[i] / 3;
                }
                for (const size_t p : tied)
                    EXPECT_LE(largest_difference(weight(out, p, slot), mean), 1e-6) << tying << p;
            }
        }
    }
}

TEST(Recursive, MeansOfQuantizedLayersAreSixteenBitsOrAsAsked) {
    const SmallShape shape{.layers = 2, .heads = 1, .kv_heads = 1, .head_dim = 32, .embd = 32, .ff = 32};
    const Model model = small_model(shape, scattered, {{Slot::attn_q, DType::Q8_0}});
    const auto type = [&](const char* option) {
        const Model out = plan_method(model, "recursive", {"init=average", option}).model;
        return std::pair{out.tensor("blk.0.attn_q.weight").type, out.tensor("blk.0.attn_norm.weight").type};
    };
    EXPECT_EQ(type("type=auto"), (std::pair{DType::F16, DType::F32}));
    EXPECT_EQ(type("type=bf16"), (std::pair{DType::BF16, DType::F32}));
    EXPECT_EQ(type("type=f32"), (std::pair{DType::F32, DType::F32}));
}

TEST(Recursive, RandomIsSeededAndOfTheFamilysDeviation) {
    const Model model = small_model({.layers = 4, .embd = 64, .ff = 512}, scattered);
    const auto up = [&](const char* seed) {
        return weight(plan_method(model, "recursive", {"init=random", seed}).model, 3, Slot::ffn_up);
    };
    const auto values = up("seed=7");
    EXPECT_EQ(values, up("seed=7"));
    EXPECT_NE(values, up("seed=8"));
    double square = 0, sum = 0;
    for (const float x : values) square += static_cast<double>(x) * x, sum += x;
    EXPECT_NEAR(std::sqrt(square / static_cast<double>(values.size())), 0.02, 0.0005);
    EXPECT_NEAR(sum / static_cast<double>(values.size()), 0, 0.0005);
    const Model out = plan_method(model, "recursive", {"init=random"}).model;
    EXPECT_NE(weight(out, 0, Slot::ffn_up), weight(out, 1, Slot::ffn_up));
    EXPECT_EQ(weight(out, 0, Slot::ffn_norm), std::vector<float>(64, 1.0F));
}

TEST(Recursive, NormsAveragedChosenOrKept) {
    const Model model = small_model(kSix, scattered);
    const auto norm = [&](const char* norms, const char* init, size_t p) {
        return weight(plan_method(model, "recursive",
                                  {"loops=2", std::string("norms=") + norms, std::string("init=") + init})
                          .model,
                      p, Slot::ffn_norm);
    };
    const auto original = [&](size_t p) { return weight(model, p, Slot::ffn_norm); };
    const auto mean = [&](size_t a, size_t b) {
        auto values = original(a);
        for (size_t i = 0; i < values.size(); ++i) values[i] = (values[i] + original(b)[i]) / 2;
        return values;
    };
    // Stepwise copies layers 0, 3 (2.5 rounded up) and 5; layers 1 and 4 use the second stored layer.
    EXPECT_EQ(norm("init", "stepwise", 4), original(3));
    EXPECT_EQ(norm("choose", "stepwise", 1), original(3));
    EXPECT_LE(largest_difference(norm("average", "stepwise", 1), mean(1, 4)), 1e-7);
    EXPECT_LE(largest_difference(norm("init", "average", 4), mean(1, 4)), 1e-7);
    EXPECT_EQ(norm("choose", "average", 4), original(1));
    EXPECT_EQ(norm("keep", "average", 4), original(4));
    EXPECT_EQ(norm("keep", "stepwise", 1), original(1));
    EXPECT_EQ(norm("fold", "average", 4), std::vector<float>(4, 1.0F));
}

// Figure 11a: layers 0, 2, ..., 16 of Gemma 2B in place of 0, 2, 4, 6, 9, ..., 17.
TEST(RecursivePlan, FixedStartLeavesOutTheLast) {
    EXPECT_EQ(plan_of(18, 2, Tying::cycle, Init::fixed_start).sources,
              (Sources{{0}, {2}, {4}, {6}, {8}, {10}, {12}, {14}, {16}}));
    EXPECT_EQ(plan_of(18, 3, Tying::cycle, Init::fixed_start).sources,
              (Sources{{0}, {3}, {6}, {9}, {12}, {15}}));
    const Model model = small_model(kSix, scattered);
    const Model out = plan_method(model, "recursive", {"loops=2", "init=fixed_start"}).model;
    EXPECT_EQ(weight(out, 4, Slot::ffn_up), weight(model, 2, Slot::ffn_up));
}

// Figure 11b: zeros of the checkpoint, which Gemma's norms add one to; other biases stay.
TEST(Recursive, NormsOfZero) {
    const auto norms = [](const char* fixture, Slot slot) {
        const Model model = fixture_model(fixture);
        const std::string loops = fmt::format("loops={}", model.topology.layers.size());
        const Model out = plan_method(model, "recursive", {loops, "init=average", "norms=zero"}).model;
        const auto values = weight(out, 0, slot);
        EXPECT_EQ(values.size(), weight(model, 0, slot).size());
        EXPECT_EQ(account(out).model.parameters,
                  account(plan_method(model, "recursive", {loops}).model).model.parameters);
        EXPECT_EQ(std::set(values.begin(), values.end()).size(), 1U) << fixture;
        return values.front();
    };
    EXPECT_EQ(norms("llama_gqa", Slot::attn_norm), 0);
    EXPECT_EQ(norms("gpt_neox", Slot::ffn_norm), 0);
    EXPECT_EQ(norms("gpt_neox", Slot::ffn_norm_bias), 0);
    EXPECT_EQ(norms("gemma", Slot::attn_norm), 1);
    const Model model = fixture_model("gpt_neox");
    EXPECT_EQ(weight(plan_method(model, "recursive", {"loops=3", "norms=zero"}).model, 0, Slot::attn_q_bias),
              weight(model, 0, Slot::attn_q_bias));
}

TEST(Recursive, OneRoundIsTheSameModel) {
    const Model model = fixture_model("gemma3");
    const Model out = plan_method(model, "recursive", {"loops=1", "init=average"}).model;
    EXPECT_EQ(out.topology, model.topology);
    ASSERT_EQ(out.tensors.size(), model.tensors.size());
    for (const auto& [name, tensor] : model.tensors) EXPECT_EQ(bytes_of(out, name), bytes_of(model, name));
}

TEST(Recursive, PlanReadsNoWeights) {
    const Model model = without_numbers(small_model(kSix, scattered));
    for (const char* init : {"init=stepwise", "init=average", "init=lower", "init=random"}) {
        for (const char* norms : {"norms=init", "norms=keep", "norms=fold"}) {
            const Compression planned = plan_method(model, "recursive", {"loops=3", init, norms});
            const uint64_t layer = 4 * 16 + 3 * 32;
            const uint64_t vectors = norms == std::string("norms=keep") ? 6 * 8 : 2 * 8;
            EXPECT_EQ(planned.after().parameters, 8 * 4 + 4 + 2 * layer + vectors) << init << norms;
        }
    }
}

class RecursiveFamilies : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, RecursiveFamilies, testing::ValuesIn(fixtures_of_equal_layers()),
                         [](const auto& test) { return test.param; });

TEST_P(RecursiveFamilies, RunAsExpanded) {
    const Model dense = fixture_model(GetParam());
    for (const char* norms : {"norms=init", "norms=keep"}) {
        const Model out = plan_method(dense, "recursive", {loops_of(dense), "init=average", norms}).model;
        ASSERT_TRUE(out.has_sharing());
        const auto expected = outputs_of(without_sharing(out));
        EXPECT_GT(largest_difference(outputs_of(dense), expected), 1e-3);  // something was tied
        EXPECT_LE(largest_difference(outputs_of(out), expected), 1e-5);
        EXPECT_LE(largest_difference(outputs_of(saved_and_loaded(out)), expected), 1e-5);
        // Every layer has a KV cache.
        EXPECT_EQ(account(out).model.kv_bytes_per_token, account(dense).model.kv_bytes_per_token);
    }
}

TEST_P(RecursiveFamilies, FoldingNormsChangesNothing) {
    const Model dense = fixture_model(GetParam());
    const std::string family = dense.family->name;
    if (!dense.topology.has(0, Slot::attn_norm)) {
        expect_error(ErrorCode::unsupported, {"layer 0", "norms=fold", "keep"},
                     [&] { fold_norms(dense, "f32"); });
        return;
    }
    if (family == "gptj") {
        expect_error(ErrorCode::unsupported, {"attn.q.bias", "norms=fold"},
                     [&] { fold_norms(dense, "f32"); });
        return;
    }
    if (family == "stablelm") {
        expect_error(ErrorCode::unsupported, {"ffn.gate.bias", "norms=fold"},
                     [&] { fold_norms(dense, "f32"); });
        return;
    }
    const Model folded = fold_norms(dense, "f32");
    EXPECT_EQ(weight(folded, 1, Slot::attn_norm),
              std::vector<float>(static_cast<size_t>(dense.config.n_embd), 1.0F));
    EXPECT_LE(largest_difference(outputs_of(folded), outputs_of(dense)), 1e-4);
}

TEST(Recursive, SharedHeadsAreWrittenOutFirst) {
    const Model dense = small_model({.layers = 4, .ff = 8}, scattered);
    const Model shared = plan_method(dense, "direct_share", {"ratio=0.5"}).model;
    const Model out = plan_method(shared, "recursive", {"init=average"}).model;
    for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o}) {
        auto mean = weight(shared, 1, slot);
        const auto other = weight(shared, 3, slot);
        for (size_t i = 0; i < mean.size(); ++i) mean[i] = (mean[i] + other[i]) / 2;
        EXPECT_LE(largest_difference(weight(out, 3, slot), mean), 1e-6);
    }
    // Head sharing within the block afterwards.
    const Model again = plan_method(out, "direct_share", {"ratio=0.3"}).model;
    EXPECT_LT(account(again).model.parameters, account(out).model.parameters);
    EXPECT_LE(largest_difference(outputs_of(saved_and_loaded(again)), outputs_of(without_sharing(again))),
              1e-5);
}

// A tied matrix is decomposed once, for all of its layers.
TEST(Recursive, TiedMatricesCanBeFactoredAfterwards) {
    const Model dense = small_model({.layers = 4, .embd = 16, .ff = 24}, scattered);
    const Recipe recipe = parse_recipe(
        "steps:\n  - {method: recursive, loops: 2}\n  - {method: laser, slots: ffn.down, layers: all, rho: "
        "0.25}\n",
        "stacked");
    Work work;
    const Model out = compress(dense, recipe, "test", work).model;
    EXPECT_EQ(out.topology.at(0, Slot::ffn_down), out.topology.at(2, Slot::ffn_down));
    EXPECT_TRUE(std::holds_alternative<LowRank>(out.topology.at(1, Slot::ffn_down)));
    const Model loaded = saved_and_loaded(out);
    EXPECT_EQ(outputs_of(without_sharing(loaded)), outputs_of(without_sharing(out)));
}

TEST(Recursive, WhatDoesNotFitIsRefused) {
    const Model model = small_model(kSix, scattered);
    const auto fails = [&](const Model& source, ErrorCode code, const std::vector<std::string>& settings,
                           const std::vector<std::string>& parts) {
        expect_error(code, parts, [&] { plan_method(source, "recursive", settings); });
    };
    fails(model, ErrorCode::usage, {"loops=0"}, {"loops", "0"});
    fails(model, ErrorCode::usage, {"loops=4"}, {"does not divide"});
    fails(model, ErrorCode::usage, {"tying=circle"}, {"cycle | sequence | cycle_rev"});

    // A pruned FFN: layer 1 is smaller than layer 3, which would use the same stored layer.
    Model pruned = model;
    pruned.config.ffs = {8, 4, 8, 8, 8, 8};
    for (const char* name : {"ffn_gate", "ffn_up"})
        pruned.tensors[fmt::format("blk.1.{}.weight", name)].shape = {4, 4};
    pruned.tensors["blk.1.ffn_down.weight"].shape = {4, 4};
    validate(pruned);
    fails(pruned, ErrorCode::unsupported, {"loops=3"}, {"layers 1 and", "ffn.gate", "4 x 4"});
    plan_method(pruned, "recursive", {"loops=1"});

    const Model broken = small_model(kSix, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        return layer == 4 && slot == Slot::ffn_up ? std::nanf("") : scattered(layer, slot, row, column);
    });
    const TempFolder folder;
    expect_error(ErrorCode::input, {"not finite"}, [&] {
        save_model(plan_method(broken, "recursive", {"init=average"}).model, folder / "out.gguf", false);
    });
    EXPECT_TRUE(folder.files().empty());
}

// ---- prefix ----

TEST(Prefix, EveryLayerGetsItsOwnKeysAndValues) {
    const Model dense = small_model({.layers = 4, .heads = 4, .kv_heads = 2, .embd = 8, .ff = 8}, scattered);
    const Model looped = plan_method(dense, "recursive", {"loops=2"}).model;
    const std::vector<std::string> settings = {"length=5", "std=0.5", "seed=3", "form=kv"};
    const Model out = plan_method(looped, "prefix", settings).model;
    EXPECT_EQ(out.config.n_prefix, 5);
    EXPECT_EQ(account(out).model.parameters, account(looped).model.parameters + 4 * 2 * 5 * 4);
    const auto keys = weight(out, 2, Slot::attn_prefix_k);
    EXPECT_EQ(keys.size(), 5u * 4);
    EXPECT_NE(keys, weight(out, 0, Slot::attn_prefix_k));
    EXPECT_NE(keys, weight(out, 2, Slot::attn_prefix_v));
    EXPECT_EQ(keys, weight(plan_method(looped, "prefix", settings).model, 2, Slot::attn_prefix_k));
    const Model loaded = saved_and_loaded(out);
    EXPECT_EQ(loaded.config.n_prefix, 5);
    // A block may be looped together with its prefixes.
    const Model after =
        plan_method(plan_method(dense, "prefix", {"length=2", "form=kv"}).model, "recursive", {"loops=2"})
            .model;
    EXPECT_NE(weight(after, 0, Slot::attn_prefix_k), weight(after, 2, Slot::attn_prefix_k));
    saved_and_loaded(after);
}

// Keys and values are those that the maps would make of tokens with these inputs, at no position.
TEST(Prefix, VectorsGoThroughTheLayersOwnMaps) {
    const Model dense = small_model({.layers = 4, .heads = 4, .kv_heads = 2, .embd = 8, .ff = 8}, scattered);
    const Model looped = plan_method(dense, "recursive", {"loops=2"}).model;
    const Model out = plan_method(looped, "prefix", {"length=5", "std=0.5", "seed=3"}).model;
    EXPECT_EQ(account(out).model.parameters, account(looped).model.parameters + 4 * 5 * 8);
    EXPECT_EQ(trained_tensors(out, "prefix").size(), 4U);
    const Model loaded = saved_and_loaded(out);
    for (const size_t p : {0U, 2U}) {
        const auto vectors = weight(loaded, p, Slot::attn_prefix);
        const PrefixRows rows = prefix_rows(loaded, p);
        for (const auto& [slot, made] : {std::pair{Slot::attn_k, rows.keys}, {Slot::attn_v, rows.values}}) {
            const auto map = weight(loaded, p, slot);
            ASSERT_EQ(made.size(), 5U * 4);
            for (size_t i = 0; i < 5; ++i) {
                for (size_t r = 0; r < 4; ++r) {
                    double sum = 0;
                    for (size_t c = 0; c < 8; ++c) sum += double{map[r * 8 + c]} * vectors[i * 8 + c];
                    EXPECT_NEAR(made[i * 4 + r], sum, 1e-5) << p << " " << slot_name(slot);
                }
            }
        }
    }
    EXPECT_NE(weight(out, 0, Slot::attn_prefix), weight(out, 2, Slot::attn_prefix));
    EXPECT_NE(prefix_rows(out, 0).keys, prefix_rows(out, 2).keys);
}

TEST(Prefix, WhatCannotHaveOneIsRefused) {
    const auto fails = [](const Model& model, ErrorCode code, const std::vector<std::string>& settings,
                          const std::string& part) {
        expect_error(code, {part}, [&] { plan_method(model, "prefix", settings); });
    };
    fails(fixture_model("mistral"), ErrorCode::unsupported, {}, "sliding windows");
    fails(fixture_model("baichuan_13b"), ErrorCode::unsupported, {}, "ALiBi");
    fails(fixture_model("bert_hub"), ErrorCode::unsupported, {}, "encoders");
    fails(small_model({}, scattered), ErrorCode::usage, {"length=0"}, "length");
    fails(plan_method(small_model({}, scattered), "prefix", {"length=2"}).model, ErrorCode::unsupported, {},
          "prefix of 2 already");
}

}  // namespace
}  // namespace refold
