// drop_experts: which experts go, and that nothing else changes.
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "compress/calibrated.h"
#include "model/hf/export.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

using nlohmann::json;
using Kept = std::map<std::string, std::vector<int64_t>>;

const std::vector<std::string> kMixtures = {"mixtral", "olmoe", "granitemoe", "gpt_oss", "qwen3_moe"};

Kept kept(const Compression& compression) { return details_of(compression)["kept"]; }

// Rows [first, first + count) of a slot's tensor times `factor`.
Model with_rows_scaled(const Model& model, size_t layer, Slot slot, int64_t first, int64_t count,
                       float factor) {
    Model out = model;
    const std::string name = std::get<Dense>(model.topology.at(layer, slot)).tensor;
    const Tensor& whole = model.tensor(name);
    std::vector<float> values = floats_of(model, name);
    for (int64_t i = first * whole.shape[0]; i < (first + count) * whole.shape[0]; ++i)
        values[static_cast<size_t>(i)] *= factor;
    out.tensors[name] = float_tensor(whole.shape, values);
    return out;
}

class DropExperts : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, DropExperts, testing::ValuesIn(kMixtures));

TEST_P(DropExperts, TheLeastImportantGo) {
    const Model model = fixture_model(GetParam());
    const Calibration text = random_text(model, 3, 24);
    for (const std::string measure : {"reap", "uses"}) {
        const Compression result = calibrated(model, {"drop_experts ratio=0.25 measure=" + measure}, text);
        const json importance = details_of(result)["importance"];
        ASSERT_FALSE(importance.empty());
        for (const auto& [layer, experts] : kept(result)) {
            const std::vector<double> values = importance[layer];
            if (measure == "uses") {  // every token uses so many
                EXPECT_NEAR(std::accumulate(values.begin(), values.end(), 0.0), model.config.n_expert_used,
                            1e-5);
            }
            double least_kept = INFINITY;
            for (const int64_t e : experts) least_kept = std::min(least_kept, values[static_cast<size_t>(e)]);
            for (size_t e = 0; e < values.size(); ++e) {
                const bool stays = std::find(experts.begin(), experts.end(), e) != experts.end();
                EXPECT_TRUE(stays || values[e] <= least_kept) << measure << " layer " << layer;
            }
            EXPECT_EQ(experts.size(), values.size() - values.size() / 4);
        }
        outputs_of(saved_and_loaded(result.model));
    }
}

// With the outputs of all others set to zero, the mixture gives what the expert alone adds: its importance is
// the mean norm of that, over the tokens where it is not zero.
TEST_P(DropExperts, ImportanceIsTheMeanNormOfWhatAnExpertAdds) {
    const Model model = fixture_model(GetParam());
    const Calibration text = random_text(model, 2, 24);
    const json importance = details_of(calibrated(model, {"drop_experts ratio=0.25"}, text))["importance"];
    const size_t layer = std::stoul(importance.begin().key());
    const std::vector<double> values = importance.begin().value();
    const auto experts = static_cast<int64_t>(values.size());
    const int64_t rows = model.config.n_embd;
    for (const int64_t expert : {int64_t{0}, experts - 1}) {
        Model alone = model;
        for (int64_t other = 0; other < experts; ++other) {
            if (other == expert) continue;
            alone = with_rows_scaled(alone, layer, Slot::ffn_down_exps, other * rows, rows, 0);
            if (model.topology.has(layer, Slot::ffn_down_exps_bias)) {
                const std::string name =
                    std::get<Dense>(model.topology.at(layer, Slot::ffn_down_exps_bias)).tensor;
                std::vector<float> bias = floats_of(alone, name);
                std::fill_n(bias.begin() + other * rows, rows, 0.0F);
                alone.tensors[name] = float_tensor({static_cast<int64_t>(bias.size())}, bias);
            }
        }
        double sum = 0, uses = 0;
        const auto observer = std::make_shared<Observer>();
        observer->taps.insert({layer, Tap::ffn_projected});
        observer->see = [&](const Tapped& tapped) {
            for (int64_t t = 0; t < tapped.tokens; ++t) {
                double norm = 0;
                for (int64_t i = 0; i < tapped.features; ++i) {
                    const double x = tapped.values[static_cast<size_t>(t * tapped.features + i)];
                    norm += x * x;
                }
                sum += std::sqrt(norm);
                uses += norm > 0 ? 1 : 0;
            }
        };
        for (const auto* part : {&text.fit, &text.held_out}) {
            for (const auto& tokens : *part) {
                SingleSequence sequence(
                    alone, {.threads = 1, .context = 64, .chunk = 64, .f32 = true, .observer = observer});
                sequence.evaluate_all(tokens, [](size_t, std::span<const float>) {});
            }
        }
        ASSERT_GT(uses, 0);
        EXPECT_NEAR(values[static_cast<size_t>(expert)], sum / uses, 1e-4 * sum / uses) << expert;
    }
}

// What no token is routed to changes nothing when it is gone, in a file and in other formats either.
TEST(DropExpertsOf, GptOssLosesUnusedOnesWithoutATrace) {
    Model model = fixture_model("gpt_oss");
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        const std::string name = std::get<Dense>(model.topology.at(p, Slot::ffn_router_bias)).tensor;
        std::vector<float> bias = floats_of(model, name);
        bias[1] = -1000;
        model.tensors[name] = float_tensor({static_cast<int64_t>(bias.size())}, bias);
    }
    const int64_t before = model.config.n_expert;
    const Compression result =
        calibrated(model, {fmt::format("drop_experts ratio={}", 1.0 / static_cast<double>(before))},
                   random_text(model, 2, 24));
    for (const auto& [layer, experts] : kept(result))
        EXPECT_EQ(std::count(experts.begin(), experts.end(), 1), 0) << layer;
    EXPECT_EQ(result.model.config.n_expert, before - 1);
    EXPECT_TRUE(result.model.config.experts.empty());
    EXPECT_FALSE(result.model.has_sharing());
    EXPECT_LE(largest_difference(outputs_of(result.model), outputs_of(model)), 1e-5);
    EXPECT_LE(largest_difference(outputs_of(saved_and_loaded(result.model)), outputs_of(model)), 1e-5);
    const TempFolder folder;
    save_hf_model(result.model, folder / "hf", {});
    EXPECT_LE(largest_difference(outputs_of(load_model(folder / "hf")), outputs_of(model)), 1e-3);
}

// Layers of different importance keep different numbers of experts, which a file of refold's own says.
TEST(DropExpertsOf, MixtralOverTheWholeModel) {
    Model model = fixture_model("mixtral");
    const int64_t experts = model.config.n_expert, rows = model.config.n_embd;
    model = with_rows_scaled(model, 1, Slot::ffn_down_exps, 0, experts * rows, 0.001F);
    const Calibration text = random_text(model, 3, 24);
    const Compression result = calibrated(model, {"drop_experts rank=global ratio=0.17"}, text);
    EXPECT_EQ(result.model.config.n_expert_of(1), model.config.n_expert_used);
    EXPECT_EQ(result.model.config.n_expert_of(0), experts);
    const Model loaded = saved_and_loaded(result.model);
    EXPECT_EQ(loaded.config.experts, result.model.config.experts);
    EXPECT_EQ(outputs_of(loaded), outputs_of(result.model));
    EXPECT_LE(largest_difference(outputs_of(result.model), outputs_of(model)), 1e-2);
    expect_error(ErrorCode::unsupported, {"different numbers of experts"},
                 [&] { without_sharing(result.model); });
}

TEST(DropExpertsOf, MixturesKeepWhatATokenUses) {
    const Model model = fixture_model("mixtral");
    const Compression result = planned(model, {"drop_experts ratio=1"});
    EXPECT_EQ(result.model.config.n_expert, model.config.n_expert_used);
    EXPECT_LT(result.after().parameters, result.before.parameters);
    EXPECT_EQ(result.after().active_parameters + static_cast<uint64_t>(model.topology.layers.size()) *
                                                     static_cast<uint64_t>(model.config.n_embd * 2),
              result.before.active_parameters);
    expect_identical(calibrated(model, {"drop_experts ratio=0"}, random_text(model, 2, 24)).model, model);
}

TEST(DropExpertsOf, OthersAreRefused) {
    const Model dense = fixture_model("qwen3");
    expect_error(ErrorCode::usage, {"drop_experts", "experts"}, [&] { planned(dense, {"drop_experts"}); });
    const Model mixture = fixture_model("mixtral");
    expect_error(ErrorCode::unsupported, {"drop_experts", "ffn.", "another layer"}, [&] {
        planned(mixture, {"repeat layers=0-1,0-1", "drop_experts"});
    });
    expect_error(ErrorCode::usage, {"layers", "3"}, [&] { planned(mixture, {"drop_experts layers=30"}); });
}

}  // namespace
}  // namespace refold
