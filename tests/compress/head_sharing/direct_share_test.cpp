#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/head_sharing/head_matches.h"
#include "compress/recipe.h"
#include "compress/small_model.h"
#include "model/materialize.h"
#include "model/validate.h"

namespace refold {
namespace {

// A vector of 16 numbers per head: 8 in Wq (2 rows of 4), then 8 in Wk. Heads as they are written here:
//   layer 0:  0.0 = e0               0.1 = e1
//   layer 1:  1.0 = 3 e0 + 4 e1      1.1 = e8           (e8 and above lie in Wk)
//   layer 2:  2.0 = 3 e0 + 4 e8      2.1 = e0 + e1
// so the cosines with all heads of earlier layers are
//   1.0: 0.0 -> 3/5, 0.1 -> 4/5                              best 0.1, 0.8
//   1.1: 0.0 -> 0, 0.1 -> 0                                  best 0.0 (first of a tie), 0
//   2.0: 0.0 -> 3/5, 0.1 -> 0, 1.0 -> 9/25, 1.1 -> 4/5       best 1.1, 0.8
//   2.1: 0.0, 0.1 -> 1/sqrt 2, 1.0 -> 7/(5 sqrt 2), 1.1 -> 0 best 1.0, 0.98995
using HeadVectors = std::map<Unit, std::map<int, float>>;
const HeadVectors kByHand = {
    {{0, 0}, {{0, 1.0F}}},
    {{0, 1}, {{1, 1.0F}}},
    {{1, 0}, {{0, 3.0F}, {1, 4.0F}}},
    {{1, 1}, {{8, 1.0F}}},
    {{2, 0}, {{0, 3.0F}, {8, 4.0F}}},
    {{2, 1}, {{0, 1.0F}, {1, 1.0F}}},
};

WeightOf from_vectors(const HeadVectors& vectors) {
    return [&vectors](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (slot != Slot::attn_q && slot != Slot::attn_k) return scattered(layer, slot, row, column);
        const auto element = static_cast<int>((row % 2) * 4 + column + (slot == Slot::attn_k ? 8 : 0));
        const auto& head = vectors.at({layer, row / 2});
        const auto found = head.find(element);
        return found == head.end() ? 0.0F : found->second;
    };
}

Model by_hand() { return small_model({}, from_vectors(kByHand)); }

Model apply(const Model& model, const std::vector<std::string>& settings, StepReport* report = nullptr) {
    return run_method("direct_share", model, settings, report);
}

void expect_match(const Match& match, Unit later, Unit former, double cosine) {
    EXPECT_EQ(match.later, later);
    EXPECT_EQ(match.former, former);
    EXPECT_NEAR(match.cosine, cosine, 1e-11);
}

TEST(DirectShare, MatchesAreTheLargestCosinesOfEarlierLayers) {
    const auto matches = best_head_matches(by_hand(), kQk, kQkvo);
    ASSERT_EQ(matches.size(), 4U);
    expect_match(matches[0], {1, 0}, {0, 1}, 0.8);
    expect_match(matches[1], {1, 1}, {0, 0}, 0.0);
    expect_match(matches[2], {2, 0}, {1, 1}, 0.8);
    expect_match(matches[3], {2, 1}, {1, 0}, 7 / (5 * std::sqrt(2.0)));
}

TEST(DirectShare, MatchLooksOnlyAtTheChosenWeights) {
    // On Wq alone 2.0 is 3 e0, equal to 0.0; on Wk alone it is 4 e8, equal to 1.1, and heads without Wk match
    // nothing.
    const auto on_q = best_head_matches(by_hand(), {Slot::attn_q}, kQkvo);
    expect_match(on_q[2], {2, 0}, {0, 0}, 1.0);
    const auto on_k = best_head_matches(by_hand(), {Slot::attn_k}, kQkvo);
    expect_match(on_k[2], {2, 0}, {1, 1}, 1.0);
    expect_match(on_k[3], {2, 1}, {0, 0}, 0.0);
}

// Wq, Wk and Wv each matched separately: 2.0 takes 0.0's queries (3 e0 and e0) and 1.1's keys (4 e8 and e8).
TEST(DirectShare, SeparateMatchesAndSharesEachByItself) {
    const Model model = by_hand();
    StepReport report;
    const Model shared = apply(model, {"ratio=0.17", "match=separate"}, &report);  // one each
    const auto parts = nlohmann::json::parse(report.details)["parts"];
    const auto source_of = [&](const char* part) {
        const auto& r = parts[part]["replacements"];
        EXPECT_EQ(r.size(), 1U);
        return std::map<Unit, Unit>{{{r[0][0][0], r[0][0][1]}, {r[0][1][0], r[0][1][1]}}};
    };
    EXPECT_EQ(source_of("q"),
              (std::map<Unit, Unit>{{{2, 0}, {0, 0}}}));  // 1, as 2.1 <- 1.0 is 7 / (5 sqrt 2)
    EXPECT_EQ(source_of("k"), (std::map<Unit, Unit>{{{2, 0}, {1, 1}}}));
    const auto v = source_of("v");
    expect_units(shared, model, v, {Slot::attn_v, Slot::attn_o}, {Slot::attn_q, Slot::attn_k});
    expect_units(shared, model, {{{2, 0}, {0, 0}}}, {Slot::attn_q},
                 {Slot::attn_k, Slot::attn_v, Slot::attn_o});
    expect_units(shared, model, {{{2, 0}, {1, 1}}}, {Slot::attn_k},
                 {Slot::attn_q, Slot::attn_v, Slot::attn_o});
    EXPECT_EQ(parameters(model) - parameters(shared), 8U + 8 + 16);
    const auto on_v = best_head_matches(model, {Slot::attn_v}, {Slot::attn_v, Slot::attn_o});
    EXPECT_EQ(largest(on_v, 1)[0].later, v.begin()->first);
    const Model qkv = apply(model, {"ratio=0.17", "match=separate", "share=qkv"});
    EXPECT_EQ(parameters(model) - parameters(qkv), 3U * 8);
}

// Pairs 1.0 <- 0.1, 2.0 <- 1.1, 2.1 <- 1.0: two connected sets, {0.1, 1.0, 2.1} and {1.1, 2.0}.
TEST(DirectShare, KeepLatterTakesTheLatestOfAConnectedSet) {
    const Model model = by_hand();
    const Model latter = apply(model, {"ratio=0.5", "keep=latter"});
    expect_units(latter, model, {{{0, 1}, {2, 1}}, {{1, 0}, {2, 1}}, {{1, 1}, {2, 0}}}, kQkvo);
    EXPECT_EQ(parameters(model) - parameters(latter), 3U * 32);
    // Two of one set in the latest layer: the first.
    const std::vector<Match> fork = {{{1, 0}, {0, 0}, 0.5}, {{2, 0}, {0, 1}, 0.2}, {{2, 1}, {0, 1}, 0.9}};
    EXPECT_EQ(resolve_latter(fork),
              (std::vector<Replacement>{{{0, 0}, {1, 0}}, {{0, 1}, {2, 0}}, {{2, 1}, {2, 0}}}));
}

TEST(DirectShare, RandomTakesTheSameHeadsAndIsSeeded) {
    const SmallShape shape{.layers = 6, .heads = 4, .kv_heads = 4, .head_dim = 2, .embd = 8};
    const Model model = small_model(shape, scattered);
    const auto pairs = [&](const std::vector<std::string>& settings) {
        StepReport report;
        apply(model, settings, &report);
        std::map<std::string, std::string> out;
        const auto details = nlohmann::json::parse(report.details);
        for (const auto& pair : details["pairs"]) {
            EXPECT_LT(pair["former"][0], pair["later"][0]);
            out[pair["later"].dump()] = pair["former"].dump();
        }
        return out;
    };
    const auto matched = pairs({"ratio=0.5"}), one = pairs({"ratio=0.5", "match=random", "seed=1"}),
               other = pairs({"ratio=0.5", "match=random", "seed=2"});
    ASSERT_EQ(matched.size(), 12U);
    EXPECT_EQ(one, pairs({"ratio=0.5", "match=random", "seed=1"}));
    EXPECT_NE(one, other);
    EXPECT_NE(one, matched);
    for (const auto& [later, former] : matched) EXPECT_TRUE(one.contains(later) && other.contains(later));
}

// 1.0, 2.0 and 2.1 go: layer 2 loses its attention, layer 1 keeps its second head.
TEST(DirectShare, NoneLeavesTheSameHeadsOut) {
    const Model model = by_hand();
    const Model dropped = apply(model, {"ratio=0.5", "match=none"});
    EXPECT_EQ(dropped.config.heads_kv, (std::vector<int64_t>{2, 1, 0}));
    EXPECT_EQ(parameters(model) - parameters(dropped), 3U * 32 + 4);  // and layer 2's norm
    EXPECT_EQ(account(dropped).model.kv_bytes_per_token, account(model).model.kv_bytes_per_token / 2);
    for (const Slot slot : kQkvo) {
        EXPECT_EQ(unit_weights(dropped, {1, 0}, slot), unit_weights(model, {1, 1}, slot));
        EXPECT_EQ(dropped.topology.at(0, slot), model.topology.at(0, slot));
        EXPECT_FALSE(dropped.topology.has(2, slot));
    }
    EXPECT_FALSE(dropped.topology.has(2, Slot::attn_norm));
    EXPECT_TRUE(dropped.topology.has(2, Slot::ffn_norm));
}

TEST(DirectShare, LayersRestrictWhatIsReplaced) {
    const Model model = by_hand();
    const Model shared = apply(model, {"ratio=1", "layers=2"});
    expect_units(shared, model, {{{2, 0}, {1, 1}}, {{2, 1}, {1, 0}}}, kQkvo);
    expect_identical(apply(model, {"ratio=1", "layers=0"}), model);
}

TEST(DirectShare, CombinationsWithoutMeaningAreRefused) {
    const Model model = by_hand();
    const auto refused = [&](const std::vector<std::string>& settings, const std::string& why) {
        expect_error(ErrorCode::usage, {why}, [&] { apply(model, settings); });
    };
    refused({"keep=latter", "chain=repo"}, "chain=root only");
    refused({"keep=latter", "chain=one-hop"}, "chain=root only");
    refused({"keep=latter", "layers=1"}, "layers=all only");
    refused({"match=none", "keep=latter"}, "copies nothing");
    refused({"match=none", "chain=repo"}, "copies nothing");
    refused({"match=none", "share=qkv"}, "copies nothing");
    refused({"layers=3"}, "layers 0 to 2");
}

// Layers 2 and 3 repeat 0 and 1, as in a looped model: a head is one unit wherever it appears.
Model looped() {
    Model model = small_model({.layers = 4, .heads = 2, .kv_heads = 2, .head_dim = 2, .embd = 4}, scattered);
    for (size_t p = 2; p < 4; ++p) model.topology.layers[p] = model.topology.layers[p - 2];
    model.topology.loops = 2;
    model.drop_unreferenced();
    validate(model);
    return model;
}

TEST(DirectShare, HeadsOfALoopAreOneUnit) {
    const Model model = looped();
    StepReport report;
    const Model shared = apply(model, {"ratio=0.25"}, &report);  // of 2 x 2 heads
    const auto details = nlohmann::json::parse(report.details);
    EXPECT_EQ(details["units"], 4);
    EXPECT_EQ(details["candidates"], 2);
    EXPECT_EQ(parameters(model) - parameters(shared), 32U);
    EXPECT_EQ(shared.topology.layers[3], shared.topology.layers[1]);
    EXPECT_EQ(shared.topology.layers[2], shared.topology.layers[0]);
    EXPECT_EQ(shared.topology.loops, 2);
    // Replaced in all loops or in none.
    expect_identical(apply(model, {"ratio=1", "layers=3"}), model);
    EXPECT_EQ(parameters(model) - parameters(apply(model, {"ratio=1", "layers=1,3"})), 64U);
    const Model dropped = apply(model, {"ratio=0.25", "match=none"});
    EXPECT_EQ(dropped.config.heads_kv, (std::vector<int64_t>{2, 1, 2, 1}));
    EXPECT_EQ(parameters(model) - parameters(dropped), 32U);
}

// Biases tied across loops stay tied.
TEST(DirectShare, BiasesOfALoopStayOne) {
    Model model = looped();
    for (size_t p = 0; p < 4; ++p) {
        const std::string name = tensor_name(*model.family, Slot::attn_v_bias, p % 2);
        const auto base = static_cast<float>(10 * (p % 2));
        model.tensors[name] = float_tensor({4}, {base, base + 1, base + 2, base + 3});
        model.topology.layers[p][Slot::attn_v_bias] = Dense{name};
    }
    std::vector<Requantized> none;
    const Model shared = share_heads(model, {{{1, 1}, {0, 0}}}, kQkvo, none);
    EXPECT_EQ(shared.topology.layers[3], shared.topology.layers[1]);
    EXPECT_EQ(materialize(shared, shared.topology.at(3, Slot::attn_v_bias), Slot::attn_v_bias),
              (std::vector<float>{10, 11, 0, 1}));
    const Model dropped = drop_heads(model, {{1, 0}}, none);
    validate(dropped);
    EXPECT_EQ(materialize(dropped, dropped.topology.at(3, Slot::attn_v_bias), Slot::attn_v_bias, 3),
              (std::vector<float>{12, 13}));
    // A vector that other layers use too does not change for them.
    for (size_t p : {0, 2})
        model.topology.layers[p][Slot::attn_v_bias] = model.topology.at(1, Slot::attn_v_bias);
    const Model own = share_heads(model, {{{1, 1}, {0, 0}}}, kQkvo, none);
    EXPECT_EQ(materialize(own, own.topology.at(0, Slot::attn_v_bias), Slot::attn_v_bias),
              (std::vector<float>{10, 11, 12, 13}));
    EXPECT_EQ(materialize(own, own.topology.at(1, Slot::attn_v_bias), Slot::attn_v_bias),
              (std::vector<float>{10, 11, 10, 11}));
}

TEST(DirectShare, FactorsAreRefusedUnlessLeftOut) {
    Model model = by_hand();
    model.tensors["u"] = float_tensor({1, 4}, {1, 2, 3, 4});
    model.tensors["v"] = float_tensor({4, 1}, {1, 2, 3, 4});
    const LowRank term{.u = "u", .v = "v"};
    Model low_rank = model;
    low_rank.topology.layers[1][Slot::attn_v] = term;
    low_rank.drop_unreferenced();
    expect_error(ErrorCode::unsupported, {"layer 1", "attn.v", "factors"}, [&] { apply(low_rank, {}); });
    StepReport report;
    const Model shared = apply(low_rank, {"ratio=1", "layers=0,2"}, &report);
    EXPECT_EQ(shared.topology.layers[1], low_rank.topology.layers[1]);
    const auto details = nlohmann::json::parse(report.details);
    ASSERT_EQ(details["replacements"].size(), 2U);
    for (const auto& r : details["replacements"]) EXPECT_EQ(r[1][0], 0);  // nor are its heads copied

    // The base under a LoRA is used whole, so a head that is shared away elsewhere stays stored.
    Model plus = model;
    plus.topology.layers[0][Slot::attn_q] = Plus{Dense{"blk.2.attn_q.weight"}, term};
    plus.drop_unreferenced();
    const Model kept = apply(plus, {"ratio=1", "layers=1,2"});
    EXPECT_EQ(materialize(kept, kept.topology.at(0, Slot::attn_q), Slot::attn_q),
              materialize(plus, plus.topology.at(0, Slot::attn_q), Slot::attn_q));
}

// From a config.json alone: the right number of units is replaced.
TEST(DirectShare, ShapesOnlyGivesExactSizes) {
    const SmallShape shape{.layers = 8, .heads = 4, .kv_heads = 4, .head_dim = 2, .embd = 8};
    const Model model = small_model(shape, scattered);
    Model shapes = model;
    shapes.shapes_only = true;
    for (auto& [name, tensor] : shapes.tensors)
        tensor.produce = []() -> std::vector<std::byte> { fail(ErrorCode::input, "test", "no weights"); };
    for (const std::string ratio : {"0.1", "0.3", "0.5"}) {
        for (const std::string setting :
             {"match=qk", "share=qkv", "keep=latter", "match=separate", "match=random", "match=none"}) {
            StepReport report;
            const Model out = apply(shapes, {"ratio=" + ratio, setting}, &report);
            const Model exact = apply(model, {"ratio=" + ratio, setting});
            EXPECT_EQ(account(out).model.kv_bytes_per_token, account(exact).model.kv_bytes_per_token)
                << ratio << " " << setting;
            // How many layers lose all heads, and their norm, depends on the weights.
            const auto norms = [](const Model& m) {
                return m.config.n_embd * std::count(m.config.heads_kv.begin(), m.config.heads_kv.end(), 0);
            };
            EXPECT_EQ(parameters(out) + static_cast<uint64_t>(norms(out)),
                      parameters(exact) + static_cast<uint64_t>(norms(exact)))
                << ratio << " " << setting;
            EXPECT_NE(fmt::format("{}", fmt::join(report.lines, "\n")).find("placeholder"),
                      std::string::npos);
        }
    }
}

TEST(DirectShare, TheFirstOfEqualCandidatesWins) {
    // The same products summed in other orders: equal up to rounding, so they must count as equal.
    const HeadVectors vectors = {
        {{0, 0}, {{0, 0.1F}, {3, 0.7F}, {9, 0.3F}}},
        {{0, 1}, {{1, 0.7F}, {2, 0.1F}, {15, 0.3F}}},
        {{1, 0}, {{0, 0.1F}, {1, 0.7F}, {2, 0.1F}, {3, 0.7F}, {9, 0.3F}, {15, 0.3F}}},
        {{1, 1}, {{0, 0.1F}, {1, 0.7F}, {2, 0.1F}, {3, 0.7F}, {9, 0.3F}, {15, 0.3F}}},
        {{2, 0}, {{7, 1.0F}}},
        {{2, 1}, {{0, 0.1F}, {1, 0.7F}, {2, 0.1F}, {3, 0.7F}, {9, 0.3F}, {15, 0.3F}}},
    };
    const auto matches = best_head_matches(small_model({}, from_vectors(vectors)), kQk, kQkvo);
    expect_match(matches[0], {1, 0}, {0, 0}, std::sqrt(0.5));
    expect_match(matches[1], {1, 1}, {0, 0}, std::sqrt(0.5));
    EXPECT_EQ(matches[0].cosine, matches[1].cosine);
    expect_match(matches[3], {2, 1}, {1, 0}, 1.0);  // and not 1.1, which is the same
    const auto one = largest(matches, 2);
    ASSERT_EQ(one.size(), 2U);
    EXPECT_EQ(one[0].later, (Unit{1, 0}));  // ties with 1.1 for second place
    EXPECT_EQ(one[1].later, (Unit{2, 1}));
}

// Layer 0 has pairs of heads x and x reversed, layer 1 has palindromic heads: the dot products with a pair
// are equal in exact arithmetic and differ by rounding in any order of summation.
TEST(DirectShare, RoundingDoesNotBreakTies) {
    const SmallShape shape{.layers = 2, .heads = 16, .kv_heads = 16, .head_dim = 2, .embd = 32};
    const auto weight = [](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (slot != Slot::attn_q && slot != Slot::attn_k) return scattered(layer, slot, row, column);
        const int64_t head = row / 2, place = (slot == Slot::attn_k ? 64 : 0) + row % 2 * 32 + column;
        if (layer == 1) return scattered(1, Slot::attn_q, head, std::min(place, 127 - place));
        return scattered(0, Slot::attn_q, head / 2, head % 2 == 0 ? place : 127 - place);
    };
    for (const auto& match : best_head_matches(small_model(shape, weight), kQk, kQkvo))
        EXPECT_EQ(match.former.index % 2, 0);
}

TEST(DirectShare, SelectsTheLargestInOrderOfPlace) {
    const auto matches = best_head_matches(by_hand(), kQk, kQkvo);
    EXPECT_TRUE(largest(matches, 0).empty());
    const auto two = largest(matches, 2);  // 0.98995, then 0.8 twice: the first of them
    ASSERT_EQ(two.size(), 2U);
    EXPECT_EQ(two[0].later, (Unit{1, 0}));
    EXPECT_EQ(two[1].later, (Unit{2, 1}));
    EXPECT_EQ(largest(matches, 100).size(), 4U);
}

TEST(DirectShare, ChainsEndAsTheOptionSays) {
    const auto selected =
        largest(best_head_matches(by_hand(), kQk, kQkvo), 3);  // 1.0<-0.1, 2.0<-1.1, 2.1<-1.0
    EXPECT_EQ(resolve(selected, Chain::root),
              (std::vector<Replacement>{{{1, 0}, {0, 1}}, {{2, 0}, {1, 1}}, {{2, 1}, {0, 1}}}));
    EXPECT_EQ(resolve(selected, Chain::one_hop),
              (std::vector<Replacement>{{{1, 0}, {0, 1}}, {{2, 0}, {1, 1}}, {{2, 1}, {1, 0}}}));
    EXPECT_EQ(resolve(selected, Chain::repo), (std::vector<Replacement>{{{2, 0}, {1, 1}}, {{2, 1}, {1, 0}}}));
}

TEST(DirectShare, LongChainsEndAtTheStoredHead) {
    const std::vector<Match> selected = {
        {{1, 0}, {0, 0}, 0.5}, {{2, 0}, {1, 0}, 0.9}, {{3, 0}, {2, 0}, 0.7}, {{4, 1}, {3, 0}, 0.6}};
    for (const auto& replacement : resolve(selected, Chain::root))
        EXPECT_EQ(replacement.source, (Unit{0, 0}));
    EXPECT_EQ(resolve(selected, Chain::repo), (std::vector<Replacement>{{{4, 1}, {3, 0}}}));
}

// In the model above, a head has 3 x 2 x 4 = 24 parameters in Wq, Wk, Wv and 8 in Wo.
TEST(DirectShare, SharesWeightsAndStoresThemOnce) {
    const Model model = by_hand();
    const Model qkvo = apply(model, {"ratio=0.5"});  // 3 of 6
    expect_units(qkvo, model, {{{1, 0}, {0, 1}}, {{2, 0}, {1, 1}}, {{2, 1}, {0, 1}}}, kQkvo);
    EXPECT_EQ(parameters(model) - parameters(qkvo), 3U * 32);
    EXPECT_FALSE(qkvo.tensors.contains("blk.2.attn_q.weight"));  // both heads gone
    EXPECT_EQ(qkvo.tensor("blk.1.attn_q.weight").shape, (std::vector<int64_t>{4, 2}));
    EXPECT_EQ(qkvo.tensor("blk.1.attn_output.weight").shape, (std::vector<int64_t>{2, 4}));
    EXPECT_EQ(qkvo.topology.at(2, Slot::attn_q),
              Expression(Heads{{{"blk.1.attn_q.weight", 0, 1}, {"blk.0.attn_q.weight", 1, 1}}}));

    const Model qkv = apply(model, {"ratio=0.5", "share=qkv"});
    expect_units(qkv, model, {{{1, 0}, {0, 1}}, {{2, 0}, {1, 1}}, {{2, 1}, {0, 1}}}, kQkv);
    EXPECT_EQ(parameters(model) - parameters(qkv), 3U * 24);
    EXPECT_EQ(qkv.topology.at(2, Slot::attn_o), Expression(Dense{"blk.2.attn_output.weight"}));
}

TEST(DirectShare, OneHopKeepsTheCopiedHeadStored) {
    const Model model = by_hand();
    StepReport report;
    const Model one_hop = apply(model, {"ratio=0.5", "chain=one-hop"}, &report);
    expect_units(one_hop, model, {{{1, 0}, {0, 1}}, {{2, 0}, {1, 1}}, {{2, 1}, {1, 0}}}, kQkvo);
    // Head 1.0 is still used by 2.1, but not by its own layer: only 2.0 and 2.1 are gone.
    EXPECT_EQ(parameters(model) - parameters(one_hop), 2U * 32);
    EXPECT_EQ(one_hop.topology.at(1, Slot::attn_k),
              Expression(Heads{{{"blk.0.attn_k.weight", 1, 1}, {"blk.1.attn_k.weight", 1, 1}}}));
    const auto details = nlohmann::json::parse(report.details);
    EXPECT_EQ(details["selected"], 3);
    EXPECT_EQ(details["replaced"], 3);
    EXPECT_EQ(details["removed"], 2);
}

TEST(DirectShare, RepoRestoresTheCopiedHead) {
    const Model model = by_hand();
    StepReport report;
    const Model repo = apply(model, {"ratio=0.5", "chain=repo"}, &report);
    expect_units(repo, model, {{{2, 0}, {1, 1}}, {{2, 1}, {1, 0}}}, kQkvo);
    EXPECT_EQ(parameters(model) - parameters(repo), 2U * 32);
    const auto details = nlohmann::json::parse(report.details);
    EXPECT_EQ(details["selected"], 3);
    EXPECT_EQ(details["replaced"], 2);
    EXPECT_TRUE(details["pairs"][1]["takes"].is_null());  // 1.0 <- 0.1, undone
}

TEST(DirectShare, RatioZeroIsTheIdentity) {
    const Model model = by_hand();
    for (const char* setting : {"chain=root", "chain=one-hop", "chain=repo", "keep=latter", "match=separate",
                                "match=random", "match=none"})
        expect_identical(apply(model, {"ratio=0", setting}), model);
}

TEST(DirectShare, CountsAllLayersAndIsNotFooledByRounding) {
    // In floating point 0.29 * 100 is below 29. At most 99 of 100 layers of one head can be replaced.
    const Model model = small_model({.layers = 100, .heads = 1, .kv_heads = 1}, scattered);
    for (const auto& [ratio, removed] :
         std::map<std::string, uint64_t>{{"0.29", 29}, {"0.295", 29}, {"0.3", 30}, {"1", 99}}) {
        EXPECT_EQ((parameters(model) - parameters(apply(model, {"ratio=" + ratio}))) / 32, removed) << ratio;
    }
}

TEST(DirectShare, OneLayerHasNothingToShare) {
    const Model model = small_model({.layers = 1}, scattered);
    EXPECT_EQ(apply(model, {"ratio=1"}).topology, model.topology);
}

// 4 query heads and 2 key/value heads: unit u is query heads 2u and 2u + 1 with key head u. Layer 1 has layer
// 0's groups in the other order, the second one a little changed.
TEST(DirectShare, UnderGqaTheUnitIsTheGroup) {
    const SmallShape shape{.layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 2, .embd = 8};
    const auto weight = [](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (slot != Slot::attn_q && slot != Slot::attn_k) return scattered(layer, slot, row, column);
        const int64_t head = row / 2;
        if (row % 2 != 0) return 0.0F;
        if (slot == Slot::attn_q) {
            // layer 0: q heads 5 e0, 5 e1 | 5 e2, 5 e3; layer 1: 5 e2, 5 e3 | 5 e0, 3 e1 + 4 e4
            if (layer == 0) return column == head ? 5.0F : 0.0F;
            if (head < 2) return column == head + 2 ? 5.0F : 0.0F;
            if (head == 2) return column == 0 ? 5.0F : 0.0F;
            return column == 1 ? 3.0F : column == 4 ? 4.0F : 0.0F;
        }
        // layer 0: k heads 5 e6 | 5 e7; layer 1: 5 e7 | 5 e6
        return column == (layer == 0 ? 6 + head : 7 - head) ? 5.0F : 0.0F;
    };
    const Model model = small_model(shape, weight);
    const auto matches = best_head_matches(model, kQk, kQkvo);
    ASSERT_EQ(matches.size(), 2U);
    expect_match(matches[0], {1, 0}, {0, 1}, 1.0);
    expect_match(matches[1], {1, 1}, {0, 0}, (25 + 15 + 25) / 75.0);

    StepReport report;
    const Model shared = apply(model, {"ratio=0.25"}, &report);
    expect_units(shared, model, {{{1, 0}, {0, 1}}}, kQkvo);
    EXPECT_EQ(parameters(model) - parameters(shared), static_cast<uint64_t>(8 * (4 + 2 + 2 + 4)));
    EXPECT_EQ(shared.topology.at(1, Slot::attn_q),
              Expression(Heads{{{"blk.0.attn_q.weight", 2, 2}, {"blk.1.attn_q.weight", 0, 2}}}));
    EXPECT_EQ(nlohmann::json::parse(report.details)["unit"], "kv_group");
    EXPECT_NE(report.lines[0].find("grouped-query"), std::string::npos);
}

TEST(DirectShare, PanelsAndStripesDoNotChangeTheResult) {
    // The reference computes the definition pair by pair.
    const SmallShape shape{.layers = 3, .heads = 6, .kv_heads = 3, .head_dim = 8, .embd = 48};
    const Model model = small_model(shape, scattered);
    std::map<Unit, std::vector<double>> vectors;
    for (size_t p = 0; p < 3; ++p) {
        for (int64_t u = 0; u < 3; ++u) {
            for (const Slot slot : kQkv) {
                for (const float w : unit_weights(model, {p, u}, slot)) vectors[{p, u}].push_back(w);
            }
        }
    }
    const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
        double sum = 0;
        for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
        return sum;
    };
    const size_t row = 9 * 48 * sizeof(double);  // of all 9 units
    for (const MatchMemory& memory : {MatchMemory{}, MatchMemory{1, 1}, MatchMemory{3 * row, 3 * 48 * 48 * 4},
                                      MatchMemory{100 * row, 1000}}) {
        const auto matches = best_head_matches(model, kQkv, kQkvo, memory);
        ASSERT_EQ(matches.size(), 6U);
        for (const auto& match : matches) {
            double best = -2;
            Unit former;
            for (const auto& [unit, vector] : vectors) {
                if (unit.layer >= match.later.layer) continue;
                const auto& own = vectors[match.later];
                const double cosine = dot(own, vector) / std::sqrt(dot(own, own) * dot(vector, vector));
                if (cosine > best) {
                    best = cosine;
                    former = unit;
                }
            }
            expect_match(match, match.later, former, best);
        }
    }
}

TEST(DirectShare, WeightsThatAreNotFiniteAreNamed) {
    const Model model = small_model({}, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        return layer == 1 && slot == Slot::attn_k && row == 3 ? std::nanf("")
                                                              : scattered(layer, slot, row, column);
    });
    expect_error(ErrorCode::input, {"layer 1", "unit 1", "not finite"},
                 [&] { best_head_matches(model, kQk, kQkvo); });
}

// Rows of a quantized tensor are copied, never quantized again.
TEST(DirectShare, QuantizedRowsAndColumnsAreCopied) {
    const SmallShape shape{.layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 128};
    for (const DType type : {DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::F16}) {
        const Model model = small_model(
            shape, scattered,
            {{Slot::attn_q, type}, {Slot::attn_k, type}, {Slot::attn_v, type}, {Slot::attn_o, type}});
        StepReport report;
        const Model shared = apply(model, {"ratio=0.5"}, &report);  // 3 of 6 groups; 4 candidates
        const auto details = nlohmann::json::parse(report.details);
        EXPECT_TRUE(details["requantized"].empty());
        std::map<Unit, Unit> source;
        for (const auto& pair : details["pairs"]) {
            source[{pair["later"][0], pair["later"][1]}] = {pair["takes"][0], pair["takes"][1]};
        }
        ASSERT_EQ(source.size(), 3U);
        expect_units(shared, model, source, kQkvo);
        for (size_t p = 0; p < 3; ++p) {
            std::vector<std::byte> keys, outputs;  // the source's bytes of the groups that are kept
            const auto k = bytes_of(model, tensor_name(*model.family, Slot::attn_k, p));
            const auto o = bytes_of(model, tensor_name(*model.family, Slot::attn_o, p));
            const size_t unit_rows = 32 * row_bytes(type, 128), line = row_bytes(type, 128),
                         part = row_bytes(type, 64);
            for (int64_t u = 0; u < 2; ++u) {
                if (!source.contains({p, u}))
                    keys.insert(keys.end(), k.begin() + u * static_cast<int64_t>(unit_rows),
                                k.begin() + (u + 1) * static_cast<int64_t>(unit_rows));
            }
            for (size_t row = 0; row < 128; ++row) {
                for (size_t u = 0; u < 2; ++u) {
                    const auto from = o.begin() + static_cast<int64_t>(row * line + u * part);
                    if (!source.contains({p, static_cast<int64_t>(u)}))
                        outputs.insert(outputs.end(), from, from + static_cast<int64_t>(part));
                }
            }
            const std::string k_name = tensor_name(*model.family, Slot::attn_k, p),
                              o_name = tensor_name(*model.family, Slot::attn_o, p);
            EXPECT_EQ(shared.tensors.contains(k_name), !keys.empty());
            if (keys.empty()) continue;
            EXPECT_EQ(bytes_of(shared, k_name), keys);
            EXPECT_EQ(bytes_of(shared, o_name), outputs);
        }
    }
}

// Heads of 64 columns are a quarter of a K-quant block: only the Wo with such heads change type, and the
// report says so.
TEST(DirectShare, WoWhoseBlocksSpanHeadsIsRequantized) {
    const SmallShape shape{.layers = 4, .heads = 4, .kv_heads = 4, .head_dim = 64, .embd = 256};
    const Model model =
        small_model(shape, scattered, {{Slot::attn_q, DType::Q4_K}, {Slot::attn_o, DType::Q4_K}});
    StepReport report;
    const Model shared = apply(model, {"ratio=0.0625"}, &report);  // one head
    const auto details = nlohmann::json::parse(report.details);
    ASSERT_EQ(details["pairs"].size(), 1U);
    const Unit later{details["pairs"][0]["later"][0], details["pairs"][0]["later"][1]};
    const Unit former{details["pairs"][0]["former"][0], details["pairs"][0]["former"][1]};
    ASSERT_EQ(details["requantized"].size(), 2U);
    EXPECT_EQ(details["requantized"][0]["from"], "Q4_K");
    EXPECT_EQ(details["requantized"][0]["to"], "Q8_0");
    for (size_t p = 0; p < 4; ++p) {
        const std::string name = tensor_name(*model.family, Slot::attn_o, p);
        const bool takes_part = p == later.layer || p == former.layer;
        EXPECT_EQ(shared.tensor(name).type, takes_part ? DType::Q8_0 : DType::Q4_K);
        EXPECT_EQ(bytes_of(shared, name).size(), shared.tensor(name).bytes());
        EXPECT_EQ(std::count_if(report.lines.begin(), report.lines.end(),
                                [&](const std::string& line) {
                                    return line.find(name + ": requantized Q4_K -> Q8_0") !=
                                           std::string::npos;
                                }),
                  takes_part ? 1 : 0);
        EXPECT_EQ(shared.tensor(tensor_name(*model.family, Slot::attn_q, p)).type, DType::Q4_K);
        // Values up to 1: Q8_0 rounds to 1/127 of a block's largest.
        for (int64_t u = 0; u < 4; ++u) {
            const Unit unit{p, u};
            const auto got = unit_weights(shared, unit, Slot::attn_o);
            const auto expected = unit_weights(model, unit == later ? former : unit, Slot::attn_o);
            for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 0.01);
        }
    }
}

TEST(DirectShare, GroupsThatFillWholeBlocksKeepTheirType) {
    const SmallShape shape{.layers = 2, .heads = 8, .kv_heads = 2, .head_dim = 64, .embd = 256};
    const Model model = small_model(shape, scattered, {{Slot::attn_o, DType::Q4_K}});
    StepReport report;
    const Model shared = apply(model, {"ratio=0.25"}, &report);
    EXPECT_TRUE(nlohmann::json::parse(report.details)["requantized"].empty());
    EXPECT_EQ(shared.tensor("blk.1.attn_output.weight").type, DType::Q4_K);
    const auto pair = nlohmann::json::parse(report.details)["pairs"][0];
    expect_units(shared, model, {{{1, pair["later"][1]}, {0, pair["former"][1]}}}, kQkvo);
}

TEST(DirectShare, OddHeadsAreRequantizedToF16) {
    const SmallShape shape{.layers = 2, .heads = 4, .kv_heads = 4, .head_dim = 16, .embd = 64};
    const Model model = small_model(shape, scattered, {{Slot::attn_o, DType::Q8_0}});
    StepReport report;
    const Model shared = apply(model, {"ratio=0.125"}, &report);
    EXPECT_EQ(nlohmann::json::parse(report.details)["requantized"][0]["to"], "F16");
    EXPECT_EQ(shared.tensor("blk.1.attn_output.weight").type, DType::F16);
}

// Steps stack: shared heads are not shared again, and follow their source.
TEST(DirectShare, StacksOnItself) {
    const SmallShape shape{.layers = 6, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16};
    const Model model = small_model(shape, scattered);
    const uint64_t unit = 16 * 4 * (2 + 1 + 1 + 2);
    const Model once = apply(model, {"ratio=0.25"});
    const Model twice = apply(once, {"ratio=0.25"});
    EXPECT_EQ(parameters(model) - parameters(once), 3 * unit);
    EXPECT_EQ(parameters(once) - parameters(twice), 3 * unit);
    // The same six heads, chains resolved, as in one step: matches do not depend on what was shared before
    // unless a head's best match was replaced.
    const auto first = best_head_matches(model, kQk, kQkvo);
    const auto second = best_head_matches(once, kQk, kQkvo);
    EXPECT_EQ(first.size(), 10U);
    EXPECT_EQ(second.size(), 7U);

    // Two layers with the same weights: the second follows when the first is replaced.
    const std::vector<Replacement> tie = {{{4, 1}, {2, 0}}};
    std::vector<Requantized> none;
    const Model tied = share_heads(model, tie, kQkvo, none);
    const Model moved = share_heads(tied, {{{2, 0}, {1, 1}}}, kQkvo, none);
    expect_units(moved, model, {{{4, 1}, {1, 1}}, {{2, 0}, {1, 1}}}, kQkvo);
    EXPECT_EQ(parameters(model) - parameters(moved), 2 * unit);
}

TEST(DirectShare, BiasesOfReplacedHeadsAreCopied) {
    Model model = by_hand();
    for (size_t p = 0; p < 3; ++p) {
        const auto base = static_cast<float>(10 * p);
        const std::string name = tensor_name(*model.family, Slot::attn_q_bias, p);
        model.tensors[name] = float_tensor({4}, {base, base + 1, base + 2, base + 3});
        model.topology.layers[p][Slot::attn_q_bias] = Dense{name};
    }
    std::vector<Requantized> none;
    const Model shared = share_heads(model, {{{2, 0}, {0, 1}}}, kQkvo, none);
    validate(shared);
    EXPECT_EQ(materialize(shared, shared.topology.at(2, Slot::attn_q_bias), Slot::attn_q_bias),
              (std::vector<float>{2, 3, 22, 23}));
    EXPECT_EQ(materialize(shared, shared.topology.at(1, Slot::attn_q_bias), Slot::attn_q_bias),
              (std::vector<float>{10, 11, 12, 13}));
}

TEST(DirectShare, ReportShowsTheDistribution) {
    StepReport report;
    apply(by_hand(), {"ratio=0.5"}, &report);
    const auto similarity = nlohmann::json::parse(report.details)["similarity"];
    EXPECT_NEAR(similarity["minimum"], 0.0, 1e-11);
    EXPECT_NEAR(similarity["quartile_1"], 0.6, 1e-11);  // of 0, 0.8, 0.8, 0.98995
    EXPECT_NEAR(similarity["median"], 0.8, 1e-11);
    EXPECT_NEAR(similarity["maximum"], 7 / (5 * std::sqrt(2.0)), 1e-11);
    EXPECT_NEAR(similarity["cut_off"], 0.8, 1e-11);
    const auto has = [&](const std::string& text) {
        return std::any_of(report.lines.begin(), report.lines.end(),
                           [&](const std::string& line) { return line.find(text) != std::string::npos; });
    };
    EXPECT_TRUE(has("threshold such as 0.9"));
    EXPECT_TRUE(has("2.1 <- 1.0: 0.98995  (itself shared: takes 0.1)"));
}

}  // namespace
}  // namespace refold
