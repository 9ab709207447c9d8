// W_c: least squares of one map, and models with such maps.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/calibrated.h"
#include "compress/compensation/compensating_map.h"
#include "linalg/pseudo_inverse.h"
#include "model/materialize.h"

namespace refold {
namespace {

using Floats = std::vector<float>;
const SmallShape kSix{.layers = 6, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .vocab = 24};

Floats noise(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    Floats out(count);
    for (float& x : out) x = normal(random);
    return out;
}

// a (m x k) b (k x n), row major.
Floats times(const Floats& a, const Floats& b, size_t m, size_t k, size_t n) {
    Floats c(m * n);
    for (size_t i = 0; i < m; ++i) {
        for (size_t l = 0; l < k; ++l) {
            for (size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
        }
    }
    return c;
}

Floats transposed(const Floats& a, size_t rows, size_t columns) {
    Floats out(a.size());
    for (size_t i = 0; i < a.size(); ++i) out[i % columns * rows + i / columns] = a[i];
    return out;
}

// ---- one map ----

// Sequences of 20 tokens with e = w x, w [out x in].
void add_linear(CompensatingMap& map, const Floats& w, size_t in, size_t out, int sequences) {
    for (int s = 0; s < sequences; ++s) {
        const Floats x = noise(20 * in, static_cast<uint32_t>(s + 10));
        map.add(s % 4 == 3, 20, x, times(x, transposed(w, out, in), 20, in, out));
    }
}

TEST(CompensatingMap, RecoversALinearDifference) {
    constexpr size_t kIn = 6, kOut = 8;
    const Floats w = noise(kOut * kIn, 1);
    for (const std::optional<double>& ridge : {std::optional<double>(), std::optional<double>(0)}) {
        CompensatingMap map({kIn, kOut, 0, ridge, 0}, 20);
        add_linear(map, w, kIn, kOut, 8);
        const SolvedMap solved = map.solve();
        EXPECT_LE(largest_difference(solved.weights, w), 1e-4);
        EXPECT_GT(solved.held_out_before, 10);
        EXPECT_LE(solved.held_out_after, 1e-6 * solved.held_out_before);
    }
}

TEST(CompensatingMap, OfLowRank) {
    constexpr size_t kIn = 6, kOut = 8;
    const Floats w = times(noise(kOut * 2, 2), noise(2 * kIn, 3), kOut, 2, kIn);
    CompensatingMap map({kIn, kOut, 2, 0.0, 0}, 20);
    add_linear(map, w, kIn, kOut, 8);
    const SolvedMap solved = map.solve();
    EXPECT_TRUE(solved.weights.empty());
    ASSERT_EQ(solved.u.size(), kOut * 2);
    EXPECT_LE(largest_difference(times(solved.u, solved.v, kOut, 2, kIn), w), 1e-3);
    EXPECT_LE(solved.fit_after, 1e-5 * solved.fit_before);
    // A rank that is too small leaves an error.
    CompensatingMap less({kIn, kOut, 1, 0.0, 0}, 20);
    add_linear(less, w, kIn, kOut, 8);
    const SolvedMap rest = less.solve();
    EXPECT_GT(rest.fit_after, 1e-3 * rest.fit_before);
    EXPECT_LT(rest.fit_after, rest.fit_before);
}

TEST(CompensatingMap, ThroughTheOutputProjection) {
    constexpr size_t kIn = 6, kInner = 5, kOut = 8;
    const Floats output = noise(kOut * kInner, 4), inner = noise(kInner * kIn, 5);
    const Floats w = times(output, inner, kOut, kInner, kIn);
    for (const int64_t rank : {0, 5}) {
        CompensatingMap map({kIn, kOut, rank, 0.0, 0}, 20);
        add_linear(map, w, kIn, kOut, 8);
        map.put_before(output);
        const SolvedMap solved = map.solve();
        const Floats got = rank == 0 ? solved.weights : times(solved.u, solved.v, kInner, 5, kIn);
        EXPECT_LE(largest_difference(got, inner), 1e-3);
        EXPECT_LE(solved.fit_after, 1e-5 * solved.fit_before);
    }
    // A part that no input of the projection can produce remains.
    CompensatingMap map({kIn, kOut, 0, 0.0, 0}, 20);
    add_linear(map, noise(kOut * kIn, 6), kIn, kOut, 8);
    map.put_before(output);
    const SolvedMap solved = map.solve();
    EXPECT_GT(solved.fit_after, 0.05 * solved.fit_before);
    EXPECT_LT(solved.fit_after, solved.fit_before);
}

TEST(CompensatingMap, OfTheAverageOverSequences) {
    constexpr size_t kIn = 3, kOut = 2;
    CompensatingMap map({kIn, kOut, 0, std::nullopt, 1}, 4);
    // One position of the sequence: W = mean(e) mean(x)^T / |mean(x)|^2, with x = (1, 2, 2) and e = (9, 18).
    map.add(false, 1, Floats{0, 2, 1}, Floats{8, 18});
    map.add(false, 1, Floats{2, 2, 3}, Floats{10, 18});
    EXPECT_LE(largest_difference(map.solve().weights, Floats{1, 2, 2, 2, 4, 4}), 1e-5);
    // The means include all sequences: a third, held-out one moves them to x = (1, 0, 0) and e = (3, 12).
    map.add(true, 1, Floats{1, -4, -4}, Floats{-9, 0});
    EXPECT_LE(largest_difference(map.solve().weights, Floats{3, 0, 0, 12, 0, 0}), 1e-5);
}

// Appendix F with N = 2: the first average alone decides about (1, 0), the second one about (0, 1).
TEST(CompensatingMap, OfSeveralAverages) {
    CompensatingMap map({2, 1, 0, std::nullopt, 2}, 3);
    map.add(false, 1, Floats{2, 0}, Floats{1}, 0);
    map.add(false, 1, Floats{0, 0}, Floats{5}, 0);  // mean: (1, 0) -> 3
    map.add(false, 2, Floats{0, 1, 0, 3}, Floats{4, 12}, 1);
    EXPECT_LE(largest_difference(map.solve().weights, Floats{3, 4}), 1e-5);
    // A held-out sequence is in its own average: (0, 1) -> 4 becomes (0, 2) -> 2, and the third row stays.
    map.add(true, 1, Floats{0, 3}, Floats{0}, 1);
    const Floats w = map.solve().weights;
    EXPECT_NEAR(w[0], 3, 1e-5);
    EXPECT_NEAR(w[1], (2 * 2 + 3 * 12) / 13.0, 1e-5);
}

TEST(PseudoInverse, MinimumNormAndLeastSquares) {
    const std::vector<double> x = {1, 0, 0, 1, 1, 1}, y = {1, 2, 4};  // three rows of two inputs
    const auto least = solve_minimum_norm(3, 2, 1, x, y, {});
    EXPECT_NEAR(least[0], 4.0 / 3, 1e-12);
    EXPECT_NEAR(least[1], 7.0 / 3, 1e-12);
    const std::vector<double> one = {3, 4}, ten = {10};
    EXPECT_NEAR(solve_minimum_norm(1, 2, 1, one, ten, {})[1], 1.6, 1e-12);
    // Equal columns: the smallest solution takes half of each; a singular value below the cut counts as 0.
    const std::vector<double> twice = {1, 1 + 1e-9, 2, 2}, z = {1, 2};
    EXPECT_NEAR(solve_minimum_norm(2, 2, 1, twice, z, {.relative = 1e-6})[0], 0.5, 1e-8);
    EXPECT_NEAR(solve_minimum_norm(2, 2, 1, twice, z, {.absolute = 1e-6})[0], 0.5, 1e-8);
    const std::vector<double> none = {NAN, 1};
    expect_error(ErrorCode::input, {"not finite"}, [&] { solve_minimum_norm(1, 2, 1, none, ten, {}); });
}

// ---- models ----

// Every token attends only to itself, so attention is linear in its normed input.
Model seeing_itself(Model model) {
    model.config.windows = {1};
    return model;
}

// The map from the normed input to the output of the attention.
Floats linear_attention(const Model& model, size_t layer) {
    const Floats o = weight(model, layer, Slot::attn_o), v = weight(model, layer, Slot::attn_v);
    Floats repeated;  // values of each query head
    const size_t width = static_cast<size_t>(model.config.head_dim * model.config.n_embd);
    for (int64_t h = 0; h < model.config.n_head; ++h) {
        const auto from =
            v.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(h / model.config.q_per_kv()) * width);
        repeated.insert(repeated.end(), from, from + static_cast<ptrdiff_t>(width));
    }
    const auto n = static_cast<size_t>(model.config.n_embd);
    return times(o, repeated, n, repeated.size() / n, n);
}

TEST(Compensation, RecoversAttentionThatIsLinear) {
    const Model model = seeing_itself(small_model(kSix, scattered_small));
    const Calibration text = random_text(model, 24, 32);
    const auto dense = outputs_of(model);
    EXPECT_GT(largest_difference(outputs_of(planned(model, {"drop layers=1,3"}).model), dense), 0.1);
    for (const std::string solver : {"lsq", "paper"}) {
        const Compression result =
            calibrated(model, {"drop layers=1,3", "compensation type=f32 compensation=" + solver}, text);
        for (const size_t layer : {1, 3})
            EXPECT_LE(largest_difference(weight(result.model, layer, Slot::attn_comp),
                                         linear_attention(model, layer)),
                      2e-2)
                << solver;
        EXPECT_LE(largest_difference(outputs_of(result.model), dense), 5e-3) << solver;
        EXPECT_EQ(result.model.topology.at(1, Slot::attn_norm), model.topology.at(1, Slot::attn_norm));
    }
}

TEST(Compensation, InAllPlaces) {
    // Layer 3's keys and values serve layer 4, which has the same input: the difference is linear in it.
    const Model model = seeing_itself(equal_attention(kSix, 3, {}));
    const Calibration text = random_text(model, 24, 32);
    const auto dense = outputs_of(model);
    for (const std::string place : {"attention", "before_o"}) {
        const Compression result =
            calibrated(model, {"cla superblocks=3-4", "compensation type=f32 place=" + place}, text);
        EXPECT_LE(largest_difference(outputs_of(result.model), dense), 1e-2) << place;
    }
    // Without an FFN this holds for the whole layer.
    Model flat = model;
    flat.tensors["blk.4.ffn_down.weight"] = float_tensor({32, 16}, Floats(32 * 16));
    const Compression ffn =
        calibrated(flat, {"cla superblocks=3-4", "compensation type=f32 place=ffn"}, text);
    EXPECT_LE(largest_difference(outputs_of(ffn.model), outputs_of(flat)), 1e-2);

    // A layer that was dropped, and whose attention added nothing.
    Model silent = small_model(kSix, scattered_small);
    silent.tensors["blk.2.attn_output.weight"] = float_tensor({16, 16}, Floats(16 * 16));
    const auto of_block = [&](const std::string& place) {
        const Compression result =
            calibrated(silent, {"drop layers=2 modules=block", "compensation place=" + place}, text);
        return details_of(result)["compensation"]["solved"][0];
    };
    EXPECT_LT(of_block("attention")["fit_before"].get<double>(), 1e-9);
    EXPECT_LT(of_block("ffn")["fit_after"].get<double>(), of_block("ffn")["fit_before"].get<double>());

    // With real attention a smaller error remains, and more freedom leaves a smaller one.
    const Model full = small_model(kSix, scattered_small);
    for (const std::string place : {"attention", "ffn", "before_o", "values"}) {
        const auto error = [&](const std::string& rank) {
            const Compression result = calibrated(
                full, {"uniattn superblocks=3-4 compensation=lsq place=" + place + " rank=" + rank}, text);
            EXPECT_EQ(
                result.after().parameters,
                planned(full, {"uniattn superblocks=3-4 compensation=lsq place=" + place + " rank=" + rank})
                    .after()
                    .parameters);
            saved_and_loaded(result.model);
            return details_of(result)["compensation"]["solved"][0];
        };
        const auto whole = error("0"), two = error("2");
        EXPECT_LT(whole["fit_after"], two["fit_after"]) << place;
        EXPECT_LT(two["fit_after"], two["fit_before"]) << place;
        EXPECT_EQ(whole["fit_before"], two["fit_before"]) << place;
    }
}

// Gemma 2 has a norm after attn.o. Layer 1's keys and values serve layer 2, which has the same residual
// stream: the difference of attn.o's outputs is linear in layer 2's normed input, that after the norm is not.
TEST(Compensation, BeforeTheNormAfterTheAttention) {
    Model model = fixture_model("gemma2");
    const std::vector<int64_t> model_windows = model.config.windows;
    model = seeing_itself(model);
    const auto width = static_cast<size_t>(model.config.n_embd);
    for (const Slot slot : {Slot::attn_post_norm, Slot::ffn_post_norm})
        model.tensors[tensor_of(model, 1, slot)] = float_tensor({model.config.n_embd}, Floats(width));
    const Calibration text = random_text(model, 24, 32);
    const auto dense = outputs_of(model);
    const auto solved = [&](const std::string& options) {
        return calibrated(model, {"cla superblocks=1-2", "compensation type=f32 " + options}, text);
    };
    const Compression before = solved("place=before_norm");
    EXPECT_TRUE(before.model.topology.has(2, Slot::attn_comp_norm));
    const float shared = largest_difference(outputs_of(planned(model, {"cla superblocks=1-2"}).model), dense);
    EXPECT_GT(shared, 0.1F);
    EXPECT_LE(largest_difference(outputs_of(before.model), dense), 0.01F * shared);
    EXPECT_GT(largest_difference(outputs_of(solved("place=attention").model), dense), 0.1F * shared);
    Model written = before.model;
    written.config.windows = model_windows;
    EXPECT_EQ(saved_and_loaded(written).topology, before.model.topology);
    EXPECT_EQ(before.after().parameters,
              planned(model, {"cla superblocks=1-2", "compensation place=before_norm"}).after().parameters);
}

TEST(Compensation, IsUniAttnsOwn) {
    const Model model = small_model(kSix, scattered_small);
    const Calibration text = random_text(model, 16, 32);
    for (const std::string solver : {"lsq", "paper", "zero"}) {
        const Compression one = calibrated(model, {"uniattn superblocks=1-3 compensation=" + solver}, text);
        const Compression two =
            calibrated(model, {"uniattn superblocks=1-3", "compensation compensation=" + solver}, text);
        EXPECT_EQ(one.model.topology, two.model.topology);
        EXPECT_EQ(outputs_of(one.model), outputs_of(two.model)) << solver;
        const bool changed =
            largest_difference(outputs_of(one.model),
                               outputs_of(planned(model, {"uniattn superblocks=1-3"}).model)) > 1e-6;
        EXPECT_EQ(changed, solver != "zero");
    }
}

// An average of 12 positions leaves directions of the 16 inputs open, eight averages leave none.
TEST(Compensation, MoreAveragesAreMoreRows) {
    const Model model = small_model(kSix, scattered_small);
    const Calibration text = random_text(model, 64, 12);
    const auto error = [&](const std::string& averages) {
        const Compression result =
            calibrated(model, {"uniattn superblocks=3-4 compensation=paper averages=" + averages}, text);
        return details_of(result)["compensation"]["solved"][0]["held_out_after"].get<double>();
    };
    EXPECT_GT(error("1"), 1.5 * error("8"));
    expect_error(ErrorCode::usage, {"averages=57", "56 sequences"}, [&] { error("57"); });
}

TEST(Compensation, IsSolvedBottomUp) {
    // From a file, so that layers before the first superblock are recognized as the original's.
    const Model model = saved_and_loaded(small_model(kSix, scattered_small));
    const Calibration text = random_text(model, 16, 32);
    const std::string shared = "uniattn superblocks=1-4";
    const Compression at_once = calibrated(model, {shared, "compensation type=f32"}, text);
    const Compression in_steps = calibrated(
        model,
        {shared, "compensation type=f32 layers=2", "compensation type=f32 layers=3", "compensation type=f32"},
        text);
    EXPECT_LE(largest_difference(outputs_of(at_once.model), outputs_of(in_steps.model)), 1e-4);
    // In the reverse order, the later map would be solved for another input.
    const Compression other = calibrated(
        model, {shared, "compensation type=f32 layers=3,4", "compensation type=f32 layers=2"}, text);
    EXPECT_GT(largest_difference(outputs_of(at_once.model), outputs_of(other.model)), 1e-3);
    EXPECT_EQ(details_of(in_steps)["compensation"]["layers"], (std::vector<size_t>{4}));
}

TEST(Compensation, WhatItCosts) {
    const Model model = small_model(kSix, scattered_small);
    const Compression shared = planned(model, {"uniattn superblocks=1-3"});
    const auto added = [&](const std::string& options) {
        const Compression result =
            planned(model, {"uniattn superblocks=1-3", "compensation compensation=zero " + options});
        EXPECT_EQ(details_of(result)["compensation"]["parameters_added"],
                  result.after().parameters - shared.after().parameters);
        // Queries and keys of each layer.
        EXPECT_EQ(details_of(result)["compensation"]["parameters_of_attention_left_out"],
                  details_of(result)["compensation"]["layers"].size() * (16 * 16 + 16 * 8));
        EXPECT_EQ(result.after().kv_bytes_per_token, shared.after().kv_bytes_per_token);
        return result.after().parameters - shared.after().parameters;
    };
    EXPECT_EQ(added(""), 2U * 16 * 16);
    EXPECT_EQ(added("rank=3"), 2U * 3 * (16 + 16));
    EXPECT_EQ(added("place=values"), 2U * 8 * 16);
    EXPECT_EQ(added("layers=2"), 16U * 16);
    const Model f16 = small_model(kSix, scattered_small, {{Slot::attn_o, DType::F16}});
    const auto type_of = [&](const Model& from, const std::string& options) {
        const Model out = planned(from, {"drop layers=2", "compensation " + options}).model;
        return out.tensor(tensor_of(out, 2, Slot::attn_comp)).type;
    };
    EXPECT_EQ(type_of(model, ""), DType::F32);
    EXPECT_EQ(type_of(f16, ""), DType::F16);
    EXPECT_EQ(type_of(f16, "type=bf16"), DType::BF16);
}

TEST(Compensation, EveryDecoderAfterLlmDrop) {
    for (const auto& name : fixture_decoders()) {
        SCOPED_TRACE(name);
        const Model model = fixture_model(name);
        if (!model.topology.has(0, Slot::attn_norm)) continue;  // W_c reads the norm before the attention
        const Calibration text = random_text(model, 16, 24);
        for (const std::string modules : {"attention", "block"}) {
            const std::vector<std::string> steps = {"llmdrop count=1 modules=" + modules, "compensation"};
            const Compression result = calibrated(model, steps, text);
            const size_t layer = details_of(result)["compensation"]["layers"][0];
            EXPECT_TRUE(result.model.topology.has(layer, Slot::attn_comp));
            EXPECT_TRUE(result.model.topology.has(layer, Slot::attn_norm));
            EXPECT_FALSE(result.model.topology.has(layer, Slot::attn_v));
            const auto outputs = outputs_of(result.model);
            EXPECT_EQ(outputs_of(saved_and_loaded(result.model)), outputs);
            EXPECT_EQ(planned(model, steps).after().bytes, result.after().bytes);
        }
    }
}

TEST(Compensation, AnInterruptedRunGoesOn) {
    namespace fs = std::filesystem;
    const Model model = small_model(kSix, scattered_small);
    const Calibration text = random_text(model, 16, 32);
    const TempFolder folder;
    const Recipe recipe = recipe_of({"uniattn superblocks=1-3,4-5 compensation=lsq"});
    const auto run = [&](size_t reused) {
        Work work(folder / "work");
        auto outputs = outputs_of(compress(model, recipe, "test", work, {&text, 1}).model);
        EXPECT_EQ(work.reused(), reused);
        return outputs;
    };
    const auto first = run(0);
    EXPECT_EQ(run(3), first);
    std::vector<fs::path> results;
    for (const auto& entry : fs::directory_iterator(folder / "work")) results.push_back(entry.path());
    ASSERT_EQ(results.size(), 3U);
    for (const auto& result : results) {
        fs::remove(result);
        EXPECT_LE(largest_difference(run(2), first), 1e-6);
    }
}

TEST(Compensation, WhereThereIsNoPlaceForIt) {
    const Model model = small_model(kSix, scattered_small);
    const auto fails = [&](ErrorCode code, const std::vector<std::string>& steps,
                           const std::vector<std::string>& parts) {
        expect_error(code, parts, [&] { planned(model, steps); });
    };
    fails(ErrorCode::unsupported, {"drop layers=2", "compensation place=before_o"}, {"layer 2", "left out"});
    fails(ErrorCode::unsupported, {"cla superblocks=2-3", "compensation place=values"},
          {"layer 3", "values"});
    fails(ErrorCode::unsupported, {"drop layers=2", "compensation", "compensation layers=2"},
          {"layer 2", "W_c already"});
    fails(ErrorCode::usage, {"drop layers=2", "compensation rank=17"}, {"layer 2", "rank=17", "16 x 16"});
    fails(ErrorCode::usage, {"drop layers=2", "compensation ridge=some"}, {"ridge", "some"});
    fails(ErrorCode::unsupported, {"prefix length=2", "compensation layers=2"}, {"prefix"});
    expect_error(ErrorCode::unsupported, {"norm after attn.o"}, [] {
        planned(fixture_model("gemma2"), {"uniattn superblocks=0-1 compensation=zero place=before_o"});
    });
    fails(ErrorCode::unsupported, {"cla superblocks=2-3", "compensation place=before_norm"},
          {"layer 3", "no norm after attn.o", "place=attention"});
    expect_error(ErrorCode::unsupported, {"layer 2", "left out"}, [] {
        planned(fixture_model("gemma2"), {"drop layers=2", "compensation place=before_norm"});
    });
    expect_error(ErrorCode::unsupported, {"encoder"},
                 [] { planned(fixture_model("bert_encoder"), {"compensation layers=0"}); });
    const Compression nothing = planned(model, {"compensation"});
    EXPECT_EQ(nothing.after().parameters, nothing.before.parameters);
    EXPECT_NE(nothing.steps[0].report.lines[0].find("nothing to compensate"), std::string::npos);
}

}  // namespace
}  // namespace refold
