// low_rank: factors that lose nothing where nothing must be lost, what both streams gain, shared bases,
// budgets.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/calibrated.h"
#include "compress/logit_distance.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

const SmallShape kShape{
    .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 32, .vocab = 24};

Model random_model() { return small_model(kShape, scattered_small); }

// The residual stream has only 6 of the 16 channels.
Model narrow_stream() {
    return small_model(kShape, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        const bool adds = slot == Slot::attn_o || slot == Slot::ffn_down;
        if ((adds && row >= 6) || (slot == Slot::token_embd && column >= 6)) return 0.0F;
        return scattered_small(layer, slot, row, column);
    });
}

Compression factored(const Model& model, const std::vector<std::string>& steps) {
    static std::vector<std::unique_ptr<Work>> kept;  // results are mapped from it
    kept.push_back(std::make_unique<Work>());
    const Calibration text = random_text(model, 16, 32);
    return compress(model, recipe_of(steps), "test", *kept.back(), {&text, 1});
}

const LowRank& factors_at(const Model& model, size_t layer, Slot slot) {
    return std::get<LowRank>(model.topology.at(layer, slot));
}

TEST(LowRankMethod, AllParametersAreTheIdentity) {
    const Model model = random_model();
    for (const char* allocation : {"uniform", "global"})
        expect_identical(
            factored(model, {fmt::format("low_rank parameters=1 allocation={}", allocation)}).model, model);
}

TEST(LowRankMethod, FullRankIsTheSameFunction) {
    const Model model = random_model();
    const double size = distance(model, small_model(kShape, scattered));
    for (const char* settings : {"", "stream=model", "share=2", "share=4 stream=model"}) {
        const Model out = factored(model, {fmt::format("low_rank rank=100 {}", settings)}).model;
        EXPECT_TRUE(std::holds_alternative<LowRank>(out.topology.at(3, Slot::ffn_down)));
        EXPECT_LE(distance(model, out), 1e-3 * size) << settings;
    }
}

TEST(LowRankMethod, MatricesWhoseInputsLieInASubspaceLoseNothing) {
    const Model model = narrow_stream();
    const std::string slots = "slots=attn.q,attn.k,attn.v,ffn.gate,ffn.up ";
    Work work;
    const Model laser =
        compress(model, recipe_of({"laser rank=6 store=factors " + slots}), "test", work).model;
    const double size = distance(model, laser);
    EXPECT_GT(size, 0.1);
    for (const char* settings : {"", "stream=model", "share=2"})
        EXPECT_LE(distance(model, factored(model, {"low_rank rank=6 " + slots + settings}).model),
                  2e-3 * size)
            << settings;
    EXPECT_GT(distance(model, factored(model, {"low_rank rank=5 " + slots}).model), 0.01 * size);
}

// An earlier layer has changed. The maps after it are solved for what the original does.
TEST(LowRankMethod, BothStreamsErrLess) {
    const Model model = random_model();
    const std::string first = "laser slots=ffn layers=0 rank=8", rank = "layers=1-3 rank=8 ";
    const double plain =
                     distance(model, factored(model, {first, "laser store=factors slots=all " + rank}).model),
                 own = distance(model, factored(model, {first, "low_rank stream=model " + rank}).model),
                 both = distance(model, factored(model, {first, "low_rank stream=both " + rank}).model);
    EXPECT_LT(own, 0.97 * plain);
    EXPECT_LT(both, 0.9 * own);
}

TEST(LowRankMethod, RefitSolvesTheFactorOfOutputs) {
    const Model model = random_model();
    const std::string step = "low_rank rank=12 stream=model";
    const Compression without = factored(model, {step}), with = factored(model, {step, "refit bias=no"});
    EXPECT_EQ(without.after().parameters, with.after().parameters);
    const auto solved = details_of(with).at("solved");
    EXPECT_EQ(solved.size(), 8U);
    double before = 0, after = 0;  // on held-out text
    for (const auto& map : solved) {
        EXPECT_EQ(map.at("free"), "rank 12");
        before += map.at("error_before").get<double>();
        after += map.at("error_after").get<double>();
    }
    EXPECT_LT(after, before);
}

TEST(LowRankMethod, SharedBasesAreStoredOnce) {
    const Model model = random_model();
    const Compression out = factored(model, {"low_rank share=3 rank=7 slots=attn.q,ffn.up,ffn.down"});
    for (const Slot slot : {Slot::attn_q, Slot::ffn_up}) {
        EXPECT_EQ(factors_at(out.model, 0, slot).v, factors_at(out.model, 1, slot).v);
        EXPECT_EQ(factors_at(out.model, 0, slot).v, factors_at(out.model, 2, slot).v);
        EXPECT_NE(factors_at(out.model, 0, slot).v, factors_at(out.model, 3, slot).v);
        EXPECT_NE(factors_at(out.model, 0, slot).u, factors_at(out.model, 1, slot).u);
    }
    EXPECT_NE(factors_at(out.model, 0, Slot::ffn_down).v, factors_at(out.model, 1, Slot::ffn_down).v);
    // Of 4 layers, 3 share a basis. By slot: 2 bases and 4 own factors; ffn.down 4 of both.
    const uint64_t q = 7 * (2 * 16 + 4 * 16), up = 7 * (2 * 16 + 4 * 32), down = 7 * 4 * (32 + 16);
    EXPECT_EQ(out.before.parameters - out.after().parameters, 4U * (16 * 16 + 2 * 16 * 32) - (q + up + down));
    // Output maps share where they are asked to.
    const Model all = factored(model, {"low_rank share=2 rank=7 share_slots=ffn.down"}).model;
    EXPECT_EQ(factors_at(all, 2, Slot::ffn_down).v, factors_at(all, 3, Slot::ffn_down).v);
    EXPECT_NE(factors_at(all, 2, Slot::attn_q).v, factors_at(all, 3, Slot::attn_q).v);

    const TempFolder folder;
    save_model(out.model, folder / "model.gguf", false);
    const Model loaded = load_model(folder / "model.gguf");
    expect_identical(loaded, out.model);
    EXPECT_EQ(parameters(loaded), out.after().parameters);
    EXPECT_EQ(distance(loaded, out.model), 0);
}

// Layers whose matrices have the same rows need one basis, whatever the coefficients.
TEST(LowRankMethod, ABasisSharedByLayersOfOneRowSpaceLosesNothing) {
    const Model model = small_model(kShape, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (slot != Slot::ffn_up) return scattered_small(layer, slot, row, column);
        float sum = 0;  // rank 5: own factor times common factor
        for (int64_t k = 0; k < 5; ++k)
            sum += scattered_small(layer, slot, row, k) * scattered_small(9, slot, k, column);
        return sum;
    });
    const double size = distance(model, random_model());
    EXPECT_LE(distance(model, factored(model, {"low_rank share=4 rank=5 slots=ffn.up"}).model), 1e-4 * size);
    EXPECT_GT(distance(model, factored(model, {"low_rank share=4 rank=4 slots=ffn.up"}).model), 1e-3 * size);
}

TEST(LowRankMethod, KeepsWithinABudget) {
    const Model model = random_model();
    for (const char* settings : {"", "share=2", "allocation=global", "allocation=global share=2"}) {
        for (const double part : {0.5, 0.8}) {
            const Compression out =
                factored(model, {fmt::format("low_rank parameters={} {}", part, settings)});
            double before = 0, after = 0;
            const nlohmann::json maps = details_of(out).at("maps");
            for (const auto& map : maps) {
                before += map.at("parameters_before").get<double>();
                after += map.at("parameters_after").get<double>();
            }
            EXPECT_LE(after, part * before) << settings;
            EXPECT_GT(after, (part - 0.15) * before) << settings;
            EXPECT_EQ(static_cast<double>(out.before.parameters - out.after().parameters), before - after);
        }
    }
}

TEST(LowRankMethod, GlobalAllocationTakesFromTheMapsThatCanSpareIt) {
    const Model model = small_model(kShape, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        const bool low = slot == Slot::ffn_gate && (layer == 1 || layer == 2);
        return scattered_small(layer, slot, low ? row % 3 : row, column);  // of rank 3
    });
    const std::string budget = "low_rank slots=ffn.gate parameters=0.7 ";
    const Model global = factored(model, {budget + "allocation=global"}).model,
                even = factored(model, {budget}).model;
    EXPECT_EQ(global.topology.at(0, Slot::ffn_gate), model.topology.at(0, Slot::ffn_gate));
    EXPECT_GE(global.tensor(factors_at(global, 1, Slot::ffn_gate).v).rows(), 3);
    EXPECT_LE(distance(model, global), 0.1 * distance(model, even));
}

// Large outputs that nothing depends on.
TEST(LowRankMethod, GlobalAllocationMeasuresWhatPredictionsLose) {
    const Model model = small_model(kShape, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (layer == 2 && slot == Slot::ffn_down) return 0.0F;
        return scattered_small(layer, slot, row, column) *
               (layer == 2 && slot == Slot::ffn_up ? 10.0F : 1.0F);
    });
    const Model out = factored(model, {"low_rank slots=ffn.up parameters=0.6 allocation=global"}).model;
    EXPECT_EQ(out.tensor(factors_at(out, 2, Slot::ffn_up).v).rows(), 1);
}

TEST(LowRankMethod, ADryRunHasTheSameSizes) {
    const Model model = random_model();
    for (const char* settings : {"parameters=0.6", "rank=5 share=2", "rank=100", "slots=ffn layers=1,3"}) {
        const std::string step = fmt::format("low_rank {}", settings);
        const Compression plan = planned(unreadable(model), {step}), done = factored(model, {step});
        EXPECT_EQ(plan.after().parameters, done.after().parameters) << settings;
        EXPECT_EQ(plan.after().bytes, done.after().bytes) << settings;
        EXPECT_EQ(plan.model.topology, done.model.topology) << settings;
    }
    EXPECT_EQ(details_of(planned(model, {"low_rank allocation=global"})).at("placeholders"), true);
}

TEST(LowRankMethod, AnInterruptedRunResumes) {
    const Model model = random_model();
    const TempFolder folder;
    const Calibration text = random_text(model, 16, 32);
    const Recipe recipe = recipe_of({"low_rank share=2 parameters=0.6 allocation=global"});
    Work first(folder / "work"), second(folder / "work");
    const Compression once = compress(model, recipe, "test", first, {&text, 1}),
                      again = compress(model, recipe, "test", second, {&text, 1});
    EXPECT_EQ(first.reused(), 0U);
    EXPECT_GT(second.reused(), 20U);
    expect_identical(again.model, once.model);
    EXPECT_EQ(again.steps[0].report.lines, once.steps[0].report.lines);
    // In the middle of the layers: the first half of what was made is there.
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "work"))
        files.push_back(entry.path());
    std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
        return std::filesystem::last_write_time(a) < std::filesystem::last_write_time(b);
    });
    for (size_t i = files.size() - 12; i < files.size(); ++i) std::filesystem::remove(files[i]);
    Work third(folder / "work");
    expect_identical(compress(model, recipe, "test", third, {&text, 1}).model, again.model);
    EXPECT_EQ(third.reused(), second.reused() - 12);
}

TEST(LowRankMethod, RunsOnEveryDecoder) {
    for (const std::string& name : fixture_decoders()) {
        SCOPED_TRACE(name);
        const Model model = fixture_model(name);
        const Compression full = factored(model, {"low_rank rank=1000 type=f32 share=2"}),
                          less = factored(model, {"low_rank rank=4 type=f32"});
        EXPECT_LT(distance(model, full.model), 0.05 * distance(model, less.model));
    }
}

TEST(LowRankMethod, BadOptionsAndModelsAreNamed) {
    const Model model = random_model();
    const auto code = [&](const Model& given, const std::string& settings, const std::string& text) {
        return code_of([&] { factored(given, {"low_rank " + settings}); }, text);
    };
    EXPECT_EQ(code(model, "rank=4 allocation=global", "leave rank out"), ErrorCode::usage);
    EXPECT_EQ(code(model, "share=6", "share"), ErrorCode::usage);
    EXPECT_EQ(code(model, "slots=attn.x", "attn.x"), ErrorCode::usage);
    EXPECT_EQ(code(model, "share_slots=attn.x", "attn.x"), ErrorCode::usage);
    EXPECT_EQ(code(model, "ridge=-1", "ridge"), ErrorCode::usage);
    EXPECT_EQ(code(model, "parameters=0.01 allocation=global", "parameters=0.01"), ErrorCode::usage);
    EXPECT_EQ(code(planned(model, {"recursive loops=2"}).model, "", "layers 0, 2"), ErrorCode::unsupported);
    EXPECT_EQ(code(planned(model, {"direct_share ratio=0.5"}).model, "", "shared"), ErrorCode::unsupported);
    EXPECT_EQ(code_of(
                  [&] {
                      factored(model, {"low_rank rank=3", "low_rank rank=2"});
                  },
                  "factors"),
              ErrorCode::unsupported);
    Work work;
    EXPECT_EQ(code_of([&] { compress(model, recipe_of({"low_rank"}), "test", work); }, "--calib"),
              ErrorCode::usage);
}

}  // namespace
}  // namespace refold
