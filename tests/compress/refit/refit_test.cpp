// refit: what it solves, what it leaves, and what it must not change.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/calibrated.h"
#include "compress/method/lazy.h"
#include "compress/refit/free_map.h"
#include "compress/refit/norm_gain.h"
#include "compress/refit/output_solver.h"
#include "compress/rewrite/modules.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "model/load.h"
#include "model/materialize.h"
#include "model/quantized.h"
#include "model/save.h"
#include "model/validate.h"

namespace refold {
namespace {

const SmallShape kFour{.layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .vocab = 24};

Model random_model() { return small_model(kFour, scattered_small); }

// Applies `refit` to a model that was made of `original`.
Model refitted(const Model& original, const Model& model, const std::vector<std::string>& settings,
               nlohmann::json* details = nullptr) {
    static std::vector<std::unique_ptr<Work>> kept;  // results are mapped from it
    kept.push_back(std::make_unique<Work>());
    const Calibration text = random_text(original, 16, 32);
    const Recipe recipe = recipe_from_method("refit", settings);
    StepReport report;
    Step step{recipe.steps[0].options, report, kept.back().get(), original, &text, "test", 1};
    Model out = recipe.steps[0].method->apply(model, step);
    validate(out);
    if (details != nullptr) *details = nlohmann::json::parse(report.details);
    return out;
}

std::vector<float> logits(const Model& model, uint32_t seed) {
    const auto tokens = random_tokens(20, model.config.n_vocab, seed);
    return all_logits(model, tokens, {.threads = 1, .context = 32, .f32 = true});
}

double distance(std::span<const float> a, std::span<const float> b) {
    double squares = 0;
    for (size_t i = 0; i < a.size(); ++i) squares += std::pow(static_cast<double>(a[i]) - b[i], 2);
    return std::sqrt(squares);
}

TEST(Refit, LeavesAnUnchangedModelAlone) {
    const TempFolder folder;
    const std::string path = folder / "model.gguf";
    save_model(random_model(), path, false);
    const std::string copied = folder / "copy.gguf";
    std::filesystem::copy_file(path, copied);
    // Mapped and computed tensors, as from a Hugging Face directory.
    for (const Model& model : {load_model(path), random_model()}) {
        nlohmann::json details;
        // In memory, or of another file.
        const Model original = model.source == nullptr ? model : load_model(copied);
        expect_identical(refitted(original, model, {}, &details), model);
        EXPECT_TRUE(details.at("solved").empty());
    }
}

// attn.comp_norm adds to what attn.o has to give.
TEST(Refit, SolvesBesideCompensationBeforeANorm) {
    Model original = fixture_model("gemma2");
    const int64_t n = original.config.n_embd;
    std::vector<float> compensation(static_cast<size_t>(n * n));
    for (size_t i = 0; i < compensation.size(); ++i)
        compensation[i] = 0.1F * scattered(1, Slot::attn_comp_norm, static_cast<int64_t>(i), 0);
    original.tensors["W_c"] = float_tensor({n, n}, compensation);
    original.topology.layers[1][Slot::attn_comp_norm] = Dense{"W_c"};
    Model changed = original;
    const std::string& name = tensor_of(original, 1, Slot::attn_o);
    const std::vector<float> wanted =
        materialize(original, original.topology.at(1, Slot::attn_o), Slot::attn_o);
    std::vector<float> other = wanted;
    for (size_t i = 0; i < other.size(); ++i) other[i] *= i % 3 == 0 ? 0.5F : 1.2F;
    changed.tensors[name] = float_tensor(original.tensor(name).shape, other);
    const Model solved = refitted(original, changed, {"slots=attn.o", "type=f32", "ridge=0", "gain=no"});
    EXPECT_LE(distance(materialize(solved, solved.topology.at(1, Slot::attn_o), Slot::attn_o), wanted),
              0.02 * distance(other, wanted));
}

// A model that was compressed earlier, repaired in a separate run.
TEST(Refit, ComparesWithTheOriginalThatItIsGiven) {
    const TempFolder folder;
    save_model(random_model(), folder / "dense.gguf", false);
    const Model dense = load_model(folder / "dense.gguf");
    const Calibration text = random_text(dense, 16, 32);
    Work work;
    const std::string drop = "drop layers=2 modules=attention";
    save_model(compress(dense, recipe_of({drop}), "test", work).model, folder / "dropped.gguf", false);
    const Model dropped = load_model(folder / "dropped.gguf");
    const Compression healed =
        compress(dropped, recipe_of({"refit"}), "test", work, {&text, 1, nullptr, &dense});
    expect_identical(healed.model,
                     compress(dense, recipe_of({drop, "refit"}), "test", work, {&text, 1}).model);
    EXPECT_EQ(healed.before.parameters, account(dropped).model.parameters);
    // Layers before the first changed one are recognized as equal although they come from another file; of
    // these, the map before the gap is solved.
    EXPECT_EQ(nlohmann::json::parse(healed.steps[0].report.details).at("solved").size(), 4U);
    EXPECT_NE(healed.model.metadata.string("refold.provenance").find("\"original\""), std::string::npos);

    // Without one it could only do nothing.
    EXPECT_EQ(code_of(
                  [&] {
                      compress(dropped, recipe_of({"refit"}), "test", work, {&text, 1});
                  },
                  "--original"),
              ErrorCode::usage);
    const Model other = small_model(
        {.layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .vocab = 32}, scattered_small);
    EXPECT_EQ(code_of(
                  [&] {
                      compress(dropped, recipe_of({"refit"}), "test", work, {&text, 1, nullptr, &other});
                  },
                  "vocabulary"),
              ErrorCode::input);
}

TEST(Refit, KeepsTheTypeOfQuantizedWeights) {
    const SmallShape shape{
        .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 64, .ff = 64, .vocab = 24};
    const Model model =
        quantize_model(small_model(shape, scattered_small), {DType::Q8_0, DType::Q8_0, 1}).model;
    const Model shared = planned(model, {"direct_share ratio=0.5"}).model;
    const Model out = refitted(model, shared, {"bias=no"});
    size_t solved = 0;
    for (const auto& [name, tensor] : out.tensors) {
        if (tensor.rows() > 1) {
            EXPECT_EQ(tensor.type, DType::Q8_0) << name;
        }
        solved += !shared.tensors.contains(name) || !(shared.tensor(name).produce == tensor.produce) ? 1 : 0;
    }
    EXPECT_GT(solved, 0);
    EXPECT_EQ(refitted(model, shared, {"bias=no", "type=f16"}).tensor("blk.1.ffn_down.weight").type,
              DType::F16);
}

TEST(Refit, OfTheSameFunctionChangesNothing) {
    // Every head shared with itself: other tensors, same values.
    const Model model = random_model();
    Model same = model;
    for (auto& [name, tensor] : same.tensors) {
        if (name.find("blk.1.") == 0) {
            tensor.mapped = {};
            tensor.produce = [bytes = bytes_of(model, name)] { return bytes; };
        }
    }
    const Model out = refitted(model, same, {"type=f32"});
    EXPECT_LE(largest_difference(logits(out, 1), logits(model, 1)), 1e-3);
}

// Heads 0 and 1 of layer 1 compute the same, so attn.o can do without one of them.
TEST(Refit, RecoversAHeadThatAnotherOneRepeats) {
    const int64_t half = kFour.heads / 2 * kFour.head_dim, group = kFour.head_dim;
    const Model model = small_model(kFour, [=](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (layer == 1 && slot == Slot::attn_q) row %= half;
        if (layer == 1 && (slot == Slot::attn_k || slot == Slot::attn_v)) row %= group;
        return scattered_small(layer, slot, row, column);
    });
    std::vector<Requantized> requantized;
    const Model cut = drop_heads(model, {Unit{1, 1}}, requantized);
    EXPECT_GT(largest_difference(logits(cut, 1), logits(model, 1)), 0.05);
    const Model out = refitted(model, cut, {"type=f32", "ridge=1e-6"});
    EXPECT_LE(largest_difference(logits(out, 1), logits(model, 1)), 5e-3);
    EXPECT_EQ(out.config.n_head_kv_of(1), 1);
}

TEST(Refit, BringsEveryFamilyNearer) {
    for (const std::string& name : fixture_decoders()) {
        SCOPED_TRACE(name);
        const Model model = fixture_model(name);
        const Calibration text = random_text(model, 16, 32);
        const Compression out =
            calibrated(model, {"drop layers=0 modules=attention", "refit type=f32"}, text);
        const auto details = details_of(out);
        ASSERT_FALSE(details["solved"].empty());
        double before = 0, after = 0;
        for (const auto& solved : details["solved"]) {
            EXPECT_LE(solved["error_after"], solved["error_before"]) << solved.dump();
            before += solved["error_before"].get<double>();
            after += solved["error_after"].get<double>();
        }
        EXPECT_LT(after, before);
    }
}

// The map before a gap is solved for the stream after it, also where its own layer is the original's.
TEST(Refit, TheMapBeforeAGapDoesTheWorkOfWhatIsLeftOut) {
    for (const std::string& name : fixture_decoders()) {
        SCOPED_TRACE(name);
        const Model model = fixture_model(name);
        if (model.topology.layers.size() < 3 || has_experts(model)) continue;
        const Compression out =
            calibrated(model, {"drop layers=1 modules=block", "refit type=f32"}, random_text(model, 16, 32));
        const auto solved = details_of(out)["solved"];
        ASSERT_FALSE(solved.empty());
        const bool parallel = model.config.parallel_residual;
        EXPECT_EQ(solved[0]["layer"], 0U);
        EXPECT_EQ(solved[0]["slot"].get<std::string>(), parallel ? "attn.o" : "ffn.down");
        EXPECT_LT(solved[0]["error_after"], 0.95 * solved[0]["error_before"].get<double>());
    }
}

// A layer that only scales the stream, so that the map before it can do its work exactly.
TEST(Refit, AGapThatAMapCanFillIsFilled) {
    Model model = random_model();
    // Layer 2 adds a constant: its FFN's output map is zero but for a bias.
    remove_attention(model, 2);
    install_vector(model, 2, Slot::ffn_down_bias, lazy::constant(DType::F32, {model.config.n_embd}, 0.5F));
    const std::string down = std::get<Dense>(model.topology.at(2, Slot::ffn_down)).tensor;
    model.tensors[down] = lazy::constant(DType::F32, model.tensor(down).shape, 0);
    Model gap = model;
    remove_ffn(gap, 2);
    gap.drop_unreferenced();
    const auto wanted = logits(model, 3);
    EXPECT_GT(distance(wanted, logits(gap, 3)), 0.01);
    EXPECT_LT(distance(wanted, logits(refitted(model, gap, {"ridge=1e-9", "layers=1", "type=f32"}), 3)),
              1e-3);
}

// Weights with added noise: the original weights are the solution.
TEST(Refit, RestoresSpoiltWeightsInEveryFamily) {
    for (const std::string& name : fixture_decoders()) {
        SCOPED_TRACE(name);
        const Model model = fixture_model(name);
        Model spoilt = model;
        for (const Slot slot : {Slot::attn_o, Slot::ffn_down}) {
            if (!model.topology.has(0, slot)) continue;
            const std::string& tensor = std::get<Dense>(model.topology.at(0, slot)).tensor;
            auto values = floats_of(model, tensor);
            for (size_t i = 0; i < values.size(); ++i)
                values[i] += 0.05F * std::sin(static_cast<float>(i * i));
            const int64_t row = model.tensor(tensor).row_elements();
            Tensor noisy{DType::F32, model.tensor(tensor).shape, {}, {}};
            noisy.produce = [values, row] { return quantize(DType::F32, values, row); };
            spoilt.tensors[tensor] = std::move(noisy);
        }
        const auto expected = logits(model, 7);
        const Model out = refitted(model, spoilt, {"type=f32", "ridge=1e-6", "layers=0"});
        EXPECT_LT(distance(logits(out, 7), expected), 0.02 * distance(logits(spoilt, 7), expected));
    }
}

// If a module's output is normalized, no map can change how much the module adds.
TEST(Refit, RestoresSpoiltGains) {
    const Model model = fixture_model("gemma3");
    Model spoilt = model;
    for (const Slot slot : {Slot::attn_post_norm, Slot::ffn_post_norm}) {
        const std::string& tensor = std::get<Dense>(model.topology.at(1, slot)).tensor;
        auto values = floats_of(model, tensor);
        for (float& value : values) value *= 0.5F;
        spoilt.tensors[tensor] =
            lazy::computed(DType::F32, model.tensor(tensor).shape, [values] { return values; });
    }
    const auto expected = logits(model, 7);
    const double spoilt_by = distance(logits(spoilt, 7), expected);
    const auto left = [&](const char* gain) {
        return distance(logits(refitted(model, spoilt, {"type=f32", "layers=1", gain}), 7), expected) /
               spoilt_by;
    };
    EXPECT_LT(left("gain=auto"), 0.02);
    EXPECT_GT(left("gain=no"), 0.5);
}

TEST(GainSquares, ChooseTheRidgeOnOtherRows) {
    constexpr size_t kWidth = 3, kRows = 40;
    const std::vector<float> prior = {1, 1, 1}, truth = {0.5F, 2, -1};
    GainSquares fit(kWidth), held_out(kWidth), noise(kWidth);
    std::vector<float> n(kWidth * kRows), y(n.size()), other(n.size());
    for (size_t i = 0; i < n.size(); ++i) {
        n[i] = std::sin(static_cast<float>(i * i + 1));
        y[i] = truth[i % kWidth] * n[i];
        other[i] = n[i];  // the prior is right here
    }
    const auto part = [&](const std::vector<float>& values, bool first) {
        return std::span(values).subspan(first ? 0 : n.size() / 2, n.size() / 2);
    };
    fit.add(part(n, true), part(y, true));
    held_out.add(part(n, false), part(y, false));
    noise.add(part(n, false), part(other, false));
    const RidgedGain solved = solve_gain(fit, held_out, prior);
    EXPECT_EQ(solved.ridge, 0);
    EXPECT_LE(largest_difference(solved.gain, truth), 1e-6);
    EXPECT_NEAR(solved.error_after, 0, 1e-9);
    EXPECT_GT(solved.error_before, 0.1);
    const RidgedGain kept = solve_gain(fit, noise, prior);
    EXPECT_TRUE(std::isinf(kept.ridge));
    EXPECT_EQ(kept.gain, prior);
    EXPECT_EQ(kept.error_after, kept.error_before);
    EXPECT_GT(fit.solve(1, prior)[0], truth[0]);  // a ridge pulls towards the prior
    EXPECT_LT(fit.solve(1, prior)[0], prior[0]);
}

TEST(Refit, SolvesOnlyTheLayersOwnHeads) {
    const Model model = random_model();
    const Calibration text = random_text(model, 16, 32);
    const Compression shared = planned(model, {"direct_share ratio=0.3"});
    const Compression out = calibrated(model, {"direct_share ratio=0.3", "refit type=f32"}, text);
    // Shared weights are still shared: only biases add parameters.
    uint64_t biases = 0;
    for (const auto& slots : out.model.topology.layers) {
        for (const Slot slot : {Slot::attn_o_bias, Slot::ffn_down_bias})
            if (slots.contains(slot)) biases += static_cast<uint64_t>(kFour.embd);
    }
    EXPECT_GT(biases, 0);
    EXPECT_EQ(parameters(out.model), parameters(shared.model) + biases);
    const Compression dry = planned(model, {"direct_share ratio=0.3", "refit type=f32"});
    EXPECT_EQ(dry.after().parameters, out.after().parameters);
    EXPECT_EQ(dry.after().bytes, out.after().bytes);
    EXPECT_EQ(dry.model.topology, out.model.topology);
}

TEST(Refit, WithoutBias) {
    const Model model = random_model();
    const Calibration text = random_text(model, 16, 32);
    const Compression out =
        calibrated(model, {"drop layers=1 modules=attention", "refit bias=no slots=ffn.down"}, text);
    for (const auto& slots : out.model.topology.layers) EXPECT_FALSE(slots.contains(Slot::ffn_down_bias));
    for (const auto& solved : details_of(out)["solved"]) {
        EXPECT_EQ(solved["slot"], "ffn.down");
        EXPECT_GE(solved["layer"], 1);  // nothing has changed before
    }
}

// W x = fixed x + prior features(x), for every kind of weight that is free in part.
TEST(FreeMap, IsTheWeight) {
    const Model model = random_model();
    const std::vector<std::vector<std::string>> recipes = {
        {"direct_share ratio=0.3"},          {"laser slots=ffn.down,attn.o rho=0.5"},
        {"relax loops=2 rank=2 norms=fold"}, {"drop layers=0 modules=attention"},
        {"tensorllm ranks=8,3,4 type=f32"},
    };
    size_t free = 0;
    for (const auto& steps : recipes) {
        Work work;
        const Model made = compress(model, recipe_of(steps), "test", work).model;
        for (size_t p = 0; p < made.topology.layers.size(); ++p) {
            for (const Slot slot : {Slot::attn_o, Slot::ffn_down}) {
                const auto map = free_map(made, p, slot);
                if (!map) continue;
                ++free;
                const SlotShape shape = slot_shape(slot, made.config, p);
                const auto w = materialize(made, made.topology.at(p, slot), slot, p);
                std::vector<float> x(static_cast<size_t>(3 * shape.in));
                for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i + p));
                const auto [prior, fixed, features] = map->values();
                const auto z = features ? features(3, x.data()) : x;
                for (int64_t t = 0; t < 3; ++t) {
                    for (int64_t r = 0; r < shape.out; ++r) {
                        double expected = 0, got = 0;
                        for (int64_t c = 0; c < shape.in; ++c) {
                            const auto at = static_cast<size_t>(r * shape.in + c);
                            const double value = x[static_cast<size_t>(t * shape.in + c)];
                            expected += w[at] * value;
                            if (!fixed.empty()) got += fixed[at] * value;
                        }
                        for (int64_t c = 0; c < map->inputs; ++c)
                            got += prior[static_cast<size_t>(r * map->inputs + c)] *
                                   z[static_cast<size_t>(t * map->inputs + c)];
                        ASSERT_NEAR(got, expected, 1e-4) << steps[0] << " " << p << " " << slot_name(slot);
                    }
                }
            }
        }
    }
    EXPECT_GT(free, 20U);
}

// The roles' matrices are independent if there are as many roles as U3 has columns.
TEST(Refit, RestoresTheCoreOfAnOutputProjection) {
    const auto decomposed = [](const char* step) {
        Work work;
        return compress(random_model(), recipe_of({step}), "test", work).model;
    };
    const Model model = decomposed("tensorllm ranks=8,3,4 layers=1 type=f32");
    const auto map = free_map(model, 1, Slot::attn_o);
    ASSERT_TRUE(map);
    auto values = map->values().prior;
    for (size_t i = 0; i < values.size(); ++i) values[i] += 0.05F * std::sin(static_cast<float>(i * i));
    std::vector<Requantized> requantized;
    const Model spoilt = map->install(
        model, lazy::computed(DType::F32, {map->inputs, map->outputs}, [values] { return values; }),
        requantized);
    for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_v}) {
        const auto weights = [&](const Model& of) {
            return materialize(of, of.topology.at(1, slot), slot, 1);
        };
        EXPECT_LE(largest_difference(weights(spoilt), weights(model)), 1e-5) << slot_name(slot);
    }
    const auto expected = logits(model, 7);
    EXPECT_GT(distance(logits(spoilt, 7), expected), 0.05);
    const Model out = refitted(model, spoilt, {"bias=no", "ridge=1e-6", "slots=attn.o"});
    EXPECT_LT(distance(logits(out, 7), expected), 0.02 * distance(logits(spoilt, 7), expected));
    EXPECT_EQ(parameters(out), parameters(model));

    EXPECT_FALSE(free_map(decomposed("tensorllm ranks=8,3,2 layers=1 type=f32"), 1, Slot::attn_o));
}

// A dry run has no weights.
TEST(Refit, DryRunCountsTheSame) {
    const Model gemma = fixture_model("gemma3"), model = random_model();
    const std::vector<std::pair<const Model*, const char*>> cases = {
        {&model, "tensorllm ranks=8,3,4 layers=1 type=f32"},
        {&model, "laser slots=ffn.down,attn.o rho=0.5"},
        {&model, "relax loops=2 rank=2"},
        {&gemma, "drop layers=0 modules=attention"},
    };
    for (const auto& [of, step] : cases) {
        SCOPED_TRACE(step);
        const std::vector<std::string> steps = {step, "refit"};
        const Compression dry = planned(*of, steps), real = calibrated(*of, steps, random_text(*of, 16, 32));
        EXPECT_EQ(dry.after().parameters, real.after().parameters);
        EXPECT_EQ(dry.after().bytes, real.after().bytes);
        EXPECT_EQ(dry.model.topology, real.model.topology);
    }
}

TEST(Refit, SaysWhatIsWrong) {
    const Model model = random_model();
    const auto message = [&](const std::vector<std::string>& steps, const Calibration* text) -> std::string {
        Work work;
        try {
            compress(model, recipe_of(steps), "test", work, {text, 1});
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    };
    const Calibration text = random_text(model, 8, 16);
    EXPECT_NE(message({"refit"}, nullptr).find("--calib"), std::string::npos);
    EXPECT_NE(message({"refit ridge=much"}, &text).find("ridge must be"), std::string::npos);
    EXPECT_NE(message({"refit slots=attn.q"}, &text).find("attn.o and ffn.down"), std::string::npos);
}

TEST(Refit, FindsItsLayersAgain) {
    const Model model = random_model();
    const Calibration text = random_text(model, 16, 32);
    const Recipe recipe = recipe_of({"drop layers=0 modules=attention", "refit"});
    Work work;
    const Model once = compress(model, recipe, "test", work, {&text, 1}).model;
    EXPECT_EQ(work.reused(), 0U);
    const Model twice = compress(model, recipe, "test", work, {&text, 1}).model;
    EXPECT_EQ(work.reused(), 7U);  // four FFNs and three attentions
    expect_identical(twice, once);
}

}  // namespace
}  // namespace refold
