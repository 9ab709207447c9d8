// uniattn: superblocks and their choice by similarity.
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "compress/attention_sharing/softmax_similarity.h"
#include "compress/attention_sharing/superblocks.h"
#include "compress/calibrated.h"
#include "compress/method/selection.h"

namespace refold {
namespace {

const SmallShape kEight{.layers = 8, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .vocab = 24};

Model eight() { return small_model(kEight, scattered_small); }

std::vector<std::vector<size_t>> list(const Superblocks& blocks) { return superblocks_list(blocks); }
using List = std::vector<std::vector<size_t>>;

// ---- choice of layers ----

TEST(Superblocks, AsThePaperPlacesThem) {
    EXPECT_EQ(list(superblocks_at_end(4, 0, 32)), (List{{16, 19}, {20, 23}, {24, 27}, {28, 31}}));
    EXPECT_EQ(list(superblocks_at_end(4, 2, 32)), (List{{24, 27}, {28, 31}}));
    EXPECT_EQ(list(superblocks_at_end(4, 0, 30)), (List{{18, 21}, {22, 25}, {26, 29}}));
    EXPECT_EQ(list(superblocks_at_end(2, 0, 30)).front(), (std::vector<size_t>{16, 17}));
    EXPECT_EQ(list(superblocks_at_end(2, 4, 8)).size(), 4U);
    EXPECT_EQ(list(parse_superblocks("5-6, 1-3", 7)), (List{{1, 3}, {5, 6}}));
    EXPECT_EQ(reusing_layers(parse_superblocks("5-6,1-3", 7)), (std::vector<size_t>{2, 3, 6}));
    EXPECT_EQ(parse_layers_or_half("top half", 5), (std::vector<size_t>{3, 4}));
    EXPECT_EQ(parse_layers_or_half("top half", 4), (std::vector<size_t>{2, 3}));
}

TEST(Superblocks, WhatMakesNoSense) {
    const auto fails = [](const std::string& text, const std::vector<std::string>& parts) {
        expect_error(ErrorCode::usage, parts, [&] { parse_superblocks(text, 8); });
    };
    fails("1-3,3-4", {"1-3", "3-4", "overlap"});
    fails("0-5,2-3", {"overlap"});
    fails("5-8", {"0 to 7"});
    fails("3", {"first and last"});
    fails("3-3", {"at least two"});
    fails("a-b", {"a-b"});
    fails("", {"first and last"});
    expect_error(ErrorCode::usage, {"superblocks of 4", "top half of 6"},
                 [] { superblocks_at_end(4, 0, 6); });
    expect_error(ErrorCode::usage, {"3 superblocks of 4", "8 layers"}, [] { superblocks_at_end(4, 3, 8); });
}

// ---- the resulting model ----

TEST(UniAttn, ReusingLayersHaveNoQueriesAndKeys) {
    const Model model = eight();
    const Compression result = planned(model, {"uniattn superblocks=2-4,5-6"});
    const Topology& topology = result.model.topology;
    ASSERT_EQ(topology.sources.size(), 3U);
    for (const auto& [layer, source] : {std::pair<size_t, size_t>{3, 2}, {4, 2}, {6, 5}}) {
        EXPECT_EQ(topology.source(layer).probabilities, source);
        for (const Slot slot : {Slot::attn_q, Slot::attn_k}) EXPECT_FALSE(topology.has(layer, slot));
        for (const Slot slot : {Slot::attn_v, Slot::attn_o, Slot::attn_norm})
            EXPECT_EQ(topology.at(layer, slot), model.topology.at(layer, slot));
    }
    for (const size_t layer : {0, 1, 2, 5, 7})
        EXPECT_EQ(topology.layers[layer], model.topology.layers[layer]);
    // 16 x 16 of queries and 16 x 8 of keys for each of three layers; 3 of 16 halves of the cache.
    EXPECT_EQ(result.before.parameters - result.after().parameters, 3U * (16 * 16 + 16 * 8));
    EXPECT_EQ(result.after().kv_bytes_per_token * 16, result.before.kv_bytes_per_token * 13);
    EXPECT_EQ(details_of(result)["reusing"], (std::vector<size_t>{3, 4, 6}));
    saved_and_loaded(result.model);
    EXPECT_EQ(planned(model, {"uniattn"}).model.topology,
              planned(model, {"uniattn superblocks=4-7"}).model.topology);
}

TEST(UniAttn, EqualQueriesKeysAndInputsChangeNothing) {
    const Model model = equal_attention(kEight, 3, {Slot::attn_q, Slot::attn_k});
    const Model shared = planned(model, {"uniattn superblocks=3-4"}).model;
    const auto before = outputs_of(model);
    EXPECT_LE(largest_difference(outputs_of(shared), before), 2e-5);
    EXPECT_GT(largest_difference(outputs_of(planned(model, {"uniattn superblocks=4-5"}).model), before),
              1e-2);
}

TEST(UniAttn, EveryDecoder) {
    for (const auto& name : fixture_decoders()) {
        SCOPED_TRACE(name);
        const Model model = fixture_model(name);
        const size_t layers = model.topology.layers.size();
        const std::string last = fmt::format("uniattn superblocks={}-{}", layers - 2, layers - 1);
        const Compression result = planned(model, {last});
        for (const auto& [slot, expression] : result.model.topology.layers.back())
            EXPECT_FALSE(result.model.topology.is_replaced(layers - 1, slot)) << slot_name(slot);
        if (model.topology.loops == 1) {  // else other loops need what one does not
            EXPECT_LT(result.after().parameters, result.before.parameters);
        }
        const auto dense = outputs_of(model), shared = outputs_of(result.model);
        EXPECT_GT(largest_difference(dense, shared), 1e-4);
        EXPECT_TRUE(std::all_of(shared.begin(), shared.end(), [](float x) { return std::isfinite(x); }));
        EXPECT_EQ(outputs_of(saved_and_loaded(result.model)), shared);
        if (!model.topology.has(0, Slot::attn_norm)) continue;  // whose output W_c reads
        // Solved W_c, for all arrangements of norms.
        const auto text = random_text(model, 16, 24);
        const Compression solved = calibrated(model, {last + " compensation=lsq"}, text);
        const auto figures = details_of(solved)["compensation"]["solved"][0];
        EXPECT_LT(figures["fit_after"].get<double>(), figures["fit_before"].get<double>());
        EXPECT_EQ(planned(model, {last + " compensation=lsq"}).after().bytes, solved.after().bytes);
    }
}

TEST(UniAttn, WhatCannotShareIsRefused) {
    const Model model = eight();
    const auto fails = [&](const std::vector<std::string>& steps, const std::vector<std::string>& parts) {
        expect_error(ErrorCode::unsupported, parts, [&] { planned(model, steps); });
    };
    fails({"drop layers=3", "uniattn superblocks=2-4"}, {"layer 3", "no attention", "step 2"});
    fails({"uniattn superblocks=2-4", "uniattn superblocks=4-5"}, {"layer 4", "from another one already"});
    fails({"uniattn superblocks=3-4", "uniattn superblocks=2-3"}, {"layer 3", "first of a superblock"});
    fails({"cla superblocks=2-4", "uniattn superblocks=3-5"}, {"layer 3"});
    fails({"prune_magnitude ratio=0.1 what=heads", "uniattn superblocks=0-7"}, {"key/value heads"});
    fails({"prefix length=2", "uniattn"}, {"prefix"});
    expect_error(ErrorCode::unsupported, {"encoder"},
                 [] { planned(fixture_model("bert_encoder"), {"uniattn superblocks=0-1"}); });
    expect_error(ErrorCode::usage, {"0 to 7"}, [&] { planned(model, {"uniattn superblocks=6-8"}); });
    expect_error(ErrorCode::usage, {"ridge"}, [&] { planned(model, {"uniattn ridge=-1"}); });
    expect_error(ErrorCode::usage, {"uniattn", "--calib"}, [&] {
        Work work;
        compress(model, recipe_of({"uniattn compensation=lsq"}), "test", work);
    });
    // A first layer may serve further layers, and a layer with a source can lose its attention.
    planned(model, {"uniattn superblocks=2-3", "cla superblocks=4-5", "drop layers=3"});
}

// ---- grouping = adaptive ----

// Best sum over all partitions of the layers into consecutive groups.
double best_by_trying(const LayerSimilarity& s, const std::vector<size_t>& layers, size_t reusing) {
    double best = -INFINITY;
    for (uint32_t cuts = 0; cuts < (1U << s.layers); ++cuts) {  // bit p: layer p has a source
        double sum = 0;
        size_t first = 0, count = 0;
        bool allowed = (cuts & 1) == 0;
        for (size_t p = 0; p < s.layers && allowed; ++p) {
            if ((cuts >> p & 1) == 0) {
                first = p;
                continue;
            }
            for (const size_t q : {p, first}) allowed &= std::binary_search(layers.begin(), layers.end(), q);
            sum += s(p, first);
            ++count;
        }
        if (allowed && count == reusing) best = std::max(best, sum);
    }
    return best;
}

TEST(AdaptiveGrouping, IsTheBestOfAll) {
    constexpr size_t kLayers = 9;
    LayerSimilarity similarity{kLayers, {}};
    for (size_t i = 0; i < kLayers * kLayers; ++i)
        similarity.values.push_back(0.5 + 0.5 * static_cast<double>(scattered(i, Slot::attn_q, 0, 0)));
    const auto any = [](size_t, size_t) { return true; };
    for (const std::vector<size_t>& layers :
         {std::vector<size_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}, std::vector<size_t>{1, 2, 3, 5, 6, 7, 8}}) {
        for (size_t reusing = 1; reusing <= 5; ++reusing) {
            const auto blocks = most_similar_superblocks(similarity, layers, reusing, any);
            double sum = 0;
            for (const auto& block : blocks) {
                for (size_t p = block.first + 1; p < block.last; ++p) sum += similarity(p, block.first);
            }
            EXPECT_EQ(reusing_layers(blocks).size(), reusing);
            EXPECT_NEAR(sum, best_by_trying(similarity, layers, reusing), 1e-12) << reusing;
        }
    }
    const std::vector<size_t> few = {2, 3};
    expect_error(ErrorCode::usage, {"reusing=2"}, [&] { most_similar_superblocks(similarity, few, 2, any); });
    EXPECT_EQ(list(most_similar_superblocks(similarity, few, 1, any)), (List{{2, 3}}));
    expect_error(ErrorCode::usage, {"reusing=1"},
                 [&] { most_similar_superblocks(similarity, few, 1, [](size_t, size_t) { return false; }); });
}

// Mean over sequences of the cosine, from the probabilities of whole sequences.
double cosine_by_hand(const Model& model, const Calibration& text, size_t a, size_t b) {
    std::map<size_t, std::vector<float>> seen;
    const auto observer = std::make_shared<Observer>();
    observer->taps = {{a, Tap::probabilities}, {b, Tap::probabilities}};
    observer->see = [&](const Tapped& t) { seen[t.layer] = {t.values.begin(), t.values.end()}; };
    const auto length = static_cast<size_t>(text.options.length),
               heads = static_cast<size_t>(model.config.n_head);
    double sum = 0;
    for (const auto* texts : {&text.fit, &text.held_out}) {
        for (const auto& text_tokens : *texts) {
            SingleSequence sequence(model, {.threads = 1,
                                            .context = text.options.length,
                                            .chunk = text.options.length,
                                            .f32 = true,
                                            .observer = observer});
            sequence.evaluate_all(text_tokens, [](size_t, std::span<const float>) {});
            double aa = 0, bb = 0, ab = 0;
            for (size_t i = 0; i < heads * length * length; ++i) {
                const double x = static_cast<double>(seen[a][i]), y = static_cast<double>(seen[b][i]);
                aa += x * x;
                bb += y * y;
                ab += x * y;
            }
            sum += ab / std::sqrt(aa * bb);
        }
    }
    return sum / static_cast<double>(text.fit.size() + text.held_out.size());
}

TEST(AdaptiveGrouping, SimilarityIsThatOfTheProbabilities) {
    const Model model = small_model(kEight, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        const bool scores = slot == Slot::attn_q || slot == Slot::attn_k;
        return (scores ? 3.0F : 1.0F) * scattered_small(layer, slot, row, column);
    });
    const Calibration text = random_text(model, 3, 40);
    const auto similarity = softmax_similarity(model, text, 1);
    for (const auto& [later, earlier] : {std::pair<size_t, size_t>{1, 0}, {7, 2}, {7, 6}})
        EXPECT_NEAR(similarity(later, earlier), cosine_by_hand(model, text, later, earlier), 2e-4);
    EXPECT_LT(similarity(7, 2), 0.99);
    // Steps of 64 tokens: a longer sequence takes several.
    Model longer = model;
    longer.config.context_length = 256;
    const Calibration long_text = random_text(longer, 2, 100);
    EXPECT_NEAR(softmax_similarity(longer, long_text, 1)(5, 3), cosine_by_hand(longer, long_text, 5, 3),
                2e-4);
}

TEST(AdaptiveGrouping, FindsTheLayersThatAttendAlike) {
    const Model model = equal_attention(kEight, 3, {Slot::attn_q, Slot::attn_k});
    const Calibration text = random_text(model, 4, 32);
    const Compression one = calibrated(model, {"uniattn grouping=adaptive reusing=1"}, text);
    EXPECT_EQ(details_of(one)["superblocks"], (List{{3, 4}}));
    EXPECT_NEAR(details_of(one)["similarity"][0]["similarity"].get<double>(), 1, 1e-4);
    const Compression upper = calibrated(model, {"uniattn grouping=adaptive reusing=2 layers=5-7"}, text);
    EXPECT_EQ(details_of(upper)["superblocks"], (List{{5, 7}}));
    // As many as without it: three of eight layers. The dry run gives the same costs.
    const Compression many = calibrated(model, {"uniattn grouping=adaptive"}, text);
    EXPECT_EQ(details_of(many)["reusing"].size(), 3U);
    EXPECT_EQ(planned(model, {"uniattn grouping=adaptive"}).after().parameters, many.after().parameters);
    // A layer without attention is skipped.
    const Compression around =
        calibrated(model, {"drop layers=4", "uniattn grouping=adaptive reusing=1"}, text);
    EXPECT_NE(details_of(around)["superblocks"], (List{{3, 4}}));
}

}  // namespace
}  // namespace refold
