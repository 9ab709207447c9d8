// correct: what low-rank terms take back, on which weights, in both engines.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compress/calibrated.h"
#include "compress/logit_distance.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "engine/engine.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

// Rows of whole blocks of Q4_0; of K-quants four and eight rows lie together.
const SmallShape kShape{
    .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 64, .ff = 96, .vocab = 48};

Model random_model() { return small_model(kShape, scattered_small); }

Compression corrected(const Model& model, const std::vector<std::string>& steps,
                      const Model* original = nullptr) {
    static std::vector<std::unique_ptr<Work>> kept;  // results are mapped from it
    kept.push_back(std::make_unique<Work>());
    const Calibration text = random_text(model, 32, 32);
    return compress(model, recipe_of(steps), "test", *kept.back(), {&text, 1, nullptr, original});
}

std::vector<float> logits(const Model& model, const EngineOptions& options, size_t tokens = 20) {
    return all_logits(model, random_tokens(tokens, model.config.n_vocab, 5), options);
}
const EngineOptions kExact{.threads = 1, .context = 32, .f32 = true};

const std::string kNearest = "quantize type=q4_0 embedding=keep rounding=nearest";

TEST(Correct, WhatIsTheOriginalsStays) {
    const Model model = random_model();
    const Compression out = corrected(model, {"correct"});
    expect_identical(out.model, model);
    EXPECT_NE(out.steps[0].report.lines.at(0).find("nothing to correct"), std::string::npos);
    // Only the slots that have changed.
    const Model down =
        corrected(model,
                  {"quantize type=keep types=ffn.down=q4_0 embedding=keep rounding=nearest", "correct"})
            .model;
    EXPECT_TRUE(std::holds_alternative<Plus>(down.topology.at(1, Slot::ffn_down)));
    EXPECT_TRUE(std::holds_alternative<Dense>(down.topology.at(1, Slot::ffn_up)));
}

TEST(Correct, HigherRanksErrLess) {
    const Model model = random_model();
    for (const std::string stream : {"both", "model"}) {
        const double rounded = distance(model, corrected(model, {kNearest}).model);
        double before = rounded, error_before = 1;
        for (const int rank : {4, 12, 24, 40}) {
            const Compression out = corrected(
                model, {kNearest, fmt::format("correct ridge=1e-4 rank={} stream={}", rank, stream)});
            const double now = distance(model, out.model);
            EXPECT_LT(now, before) << stream << rank;
            before = now;
            double error = 0;
            const nlohmann::json solved = details_of(out).at("solved");
            for (const auto& map : solved) {
                EXPECT_LT(map.at("error_after"), map.at("error_before"));
                error += map.at("error_after").get<double>() / 21;
            }
            EXPECT_LT(error, error_before);
            error_before = error;
        }
        // Of full rank it is the original again.
        const Model all = corrected(model, {kNearest, "correct type=f32 rank=100 stream=" + stream}).model;
        EXPECT_LE(distance(model, all), 0.02 * rounded) << stream;
    }
}

// The stored weights stay as they are, both engines add the terms, and a plan has the same sizes.
void expect_added_terms(const std::string& type, bool folded) {
    SCOPED_TRACE(type);
    const Model model = random_model();
    const TempFolder folder;
    const std::string rounding = "quantize embedding=keep rounding=nearest type=" + type;
    const Model quantized = corrected(model, {rounding}).model;
    const Compression out = corrected(model, {rounding, "correct rank=6"});
    for (const auto& [name, tensor] : quantized.tensors)
        EXPECT_EQ(bytes_of(out.model, name), bytes_of(quantized, name)) << name;
    EXPECT_EQ(quantized.tensor("blk.0.attn_q.weight").fold() > 1, folded);
    const uint64_t added = 3U * 6 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 96));
    EXPECT_EQ(out.after().parameters, parameters(quantized) + added);
    EXPECT_LT(distance(model, out.model), distance(model, quantized));
    const Compression plan = planned(unreadable(model), {rounding, "correct rank=6"});
    EXPECT_EQ(plan.after().parameters, out.after().parameters);
    EXPECT_EQ(plan.after().bytes, out.after().bytes);
    EXPECT_EQ(plan.model.topology, out.model.topology);
    save_model(out.model, folder / "model.gguf", true);
    const Model loaded = load_model(folder / "model.gguf");
    EXPECT_EQ(loaded.topology, out.model.topology);
    EXPECT_EQ(logits(loaded, kExact), logits(out.model, kExact));
    for (const size_t tokens : {1, 20}) {
        const auto wanted = logits(out.model, kExact, tokens);
        if (has_torch_engine()) {
            const EngineOptions torch{.kind = EngineKind::torch, .threads = 1, .context = 32, .f32 = true};
            EXPECT_LT(scaled_difference(logits(out.model, torch, tokens), wanted), 1e-4);
        }
        EXPECT_LT(scaled_difference(logits(out.model, {.threads = 2, .context = 32}, tokens), wanted), 0.1);
    }
}

TEST(Correct, AddsTermsToFoldedWeights) {
    for (const char* type : {"q3_k", "iq4_xs", "q6_k"}) expect_added_terms(type, true);
}

TEST(Correct, AddsTermsToPackedWeights) {
    for (const char* type : {"q4_0", "q8_0"}) expect_added_terms(type, false);
}

// GPTQ has solved the output maps for the errors before them. Corrected towards the original's matrices, they
// would lose that.
TEST(Correct, BothStreamsKeepSolvedOutputMaps) {
    const Model model = random_model();
    const std::string gptq = "quantize type=q2_k embedding=keep";
    const double rounded = distance(model, corrected(model, {gptq}).model),
                 own = distance(model, corrected(model, {gptq, "correct rank=8 stream=model"}).model),
                 both = distance(model, corrected(model, {gptq, "correct rank=8 stream=both"}).model);
    EXPECT_LT(both, rounded);
    EXPECT_LT(both, own);
}

// Layers that run several times or share heads, each with a term of its own.
TEST(Correct, SharedWeightsGetTermsByLayer) {
    const Model model = random_model();
    for (const std::string step : {"recursive loops=3", "direct_share ratio=0.5"}) {
        SCOPED_TRACE(step);
        const Model shared = planned(model, {step}).model;
        const Model out = corrected(model, {step, "correct type=f32 rank=100 stream=model"}).model;
        EXPECT_EQ(base_of(out.topology.at(1, Slot::attn_q)), shared.topology.at(1, Slot::attn_q));
        for (size_t p = 0; p < 3; ++p) {
            for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_o, Slot::ffn_up, Slot::ffn_down})
                EXPECT_LE(largest_difference(weight(out, p, slot), weight(model, p, slot)), 1e-4)
                    << p << slot_name(slot);
        }
    }
}

TEST(Correct, TakesTheOriginalThatItIsGiven) {
    const TempFolder folder;
    save_model(random_model(), folder / "dense.gguf", true);
    const Model dense = load_model(folder / "dense.gguf");
    save_model(corrected(dense, {kNearest}).model, folder / "quantized.gguf", true);
    const Model quantized = load_model(folder / "quantized.gguf");
    expect_identical(corrected(quantized, {"correct rank=5"}, &dense).model,
                     corrected(dense, {kNearest, "correct rank=5"}).model);
}

TEST(Correct, RefusesWhatItCannotCorrect) {
    const Model model = random_model();
    const auto code = [&](const std::vector<std::string>& steps, const std::string& text) {
        return code_of([&] { corrected(model, steps); }, text);
    };
    EXPECT_EQ(code({kNearest, "correct rank=4", "correct rank=4"}, "has a LoRA or a correction"),
              ErrorCode::unsupported);
    EXPECT_EQ(code({"narrow ratio=0.5", "correct"}, "32 by 64, the original's 96 by 64"),
              ErrorCode::unsupported);
    EXPECT_EQ(code({kNearest, "correct rank=0"}, "rank"), ErrorCode::usage);
    EXPECT_EQ(code({kNearest, "correct slots=embedding"}, "embedding"), ErrorCode::usage);
}

}  // namespace
}  // namespace refold
