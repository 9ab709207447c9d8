#include "compress/factor_checks.h"
#include "compress/factorization/factoring.h"
#include "linalg/svd.h"

namespace refold {
namespace {

using nlohmann::json;

// U S V of a slot's matrix, float64 sums.
std::vector<float> approximation(const Model& model, size_t layer, Slot slot, int64_t rank) {
    const SlotShape shape = slot_shape(slot, model.config);
    const Svd svd = truncated_svd(weights(model, layer, slot), shape.out, shape.in, rank);
    std::vector<float> out;
    for (int64_t r = 0; r < shape.out; ++r) {
        for (int64_t c = 0; c < shape.in; ++c) {
            double sum = 0;
            for (int64_t k = 0; k < rank; ++k)
                sum += static_cast<double>(svd.u[static_cast<size_t>(r * rank + k)]) *
                       svd.s[static_cast<size_t>(k)] * svd.v[static_cast<size_t>(k * shape.in + c)];
            out.push_back(static_cast<float>(sum));
        }
    }
    return out;
}

TEST(Laser, RankOfAPart) {
    EXPECT_EQ(factoring::rank_of(0.1, 576), 57);
    EXPECT_EQ(factoring::rank_of(1, 576), 576);
    // The authors' rates of a matrix of 4096.
    EXPECT_EQ(factoring::rank_of((10 - 9.9) * 0.1, 4096), 40);
    EXPECT_EQ(factoring::rank_of((10 - 9.0) * 0.1, 4096), 409);
    EXPECT_EQ(factoring::rank_of((10 - 8.0) * 0.1, 4096), 819);
    EXPECT_EQ(factoring::rank_of((10 - 9.5) * 0.1, 4096), 204);
}

TEST(Laser, ReplacesTheChosenMatricesByTheirBestApproximation) {
    const Model model = factor_model();
    const Compression result =
        compressed(model, "laser", {"slots=ffn.down,attn.k", "layers=1-2", "rho=0.2", "type=f32"});
    for (const json& matrix : details_of(result)["matrices"]) {
        const size_t p = matrix["layers"][0];
        const Slot slot = slot_from_name(matrix["slot"]);
        EXPECT_EQ(matrix["rank"], slot == Slot::ffn_down ? 4 : 3);  // of 24 and of 16
        EXPECT_EQ(matrix["stored"], "factors");
        EXPECT_LE(
            largest_difference(weights(result.model, p, slot), approximation(model, p, slot, matrix["rank"])),
            1e-5);
        EXPECT_NEAR(matrix["relative_error"], relative_loss(result.model, model, p, {slot}), 1e-5);
        EXPECT_GT(matrix["relative_error"], 0.1);
    }
    EXPECT_EQ(details_of(result)["matrices"].size(), 4U);
    for (size_t p = 0; p < 3; ++p) {
        for (const auto& [slot, expression] : model.topology.layers[p]) {
            if (p > 0 && (slot == Slot::ffn_down || slot == Slot::attn_k)) continue;
            EXPECT_EQ(result.model.topology.at(p, slot), expression);
        }
    }
    EXPECT_EQ(result.before.parameters - result.after().parameters,
              2U * (24 * 40 - 4 * (24 + 40) + 24 * 16 - 3 * (24 + 16)));
    expect_round_trip(result);
}

TEST(Laser, FullRankIsTheSameTensor) {
    const Model model = factor_model({{Slot::attn_q, DType::F16}});
    for (const char* how : {"rho=1", "rate=0", "rank=4000", "energy=1"}) {
        const Compression result = compressed(model, "laser", {"slots=all", how});
        EXPECT_EQ(result.model.topology, model.topology) << how;
        for (const auto& [name, tensor] : model.tensors)
            EXPECT_EQ(bytes_of(result.model, name), bytes_of(model, name)) << name;
    }
    EXPECT_NE(to_text(planned(model, "laser", {"rho=1"})).find("full rank, unchanged"), std::string::npos);
}

TEST(Laser, StoresWhateverIsSmaller) {
    const Model model = factor_model();
    // 24 x 40: factors are smaller below rank 15.
    for (const auto& [rank, stored] : {std::pair{14, "factors"}, {15, "dense"}, {23, "dense"}}) {
        const Settings settings = {"slots=ffn.up", "layers=0", fmt::format("rank={}", rank), "type=f32"};
        const Compression result = compressed(model, "laser", settings);
        EXPECT_EQ(details_of(result)["matrices"][0]["stored"], stored) << rank;
        EXPECT_LE(result.after().parameters, result.before.parameters);
        EXPECT_LE(largest_difference(weights(result.model, 0, Slot::ffn_up),
                                     approximation(model, 0, Slot::ffn_up, rank)),
                  1e-5);
        for (const char* store : {"dense", "factors"}) {
            Settings chosen = settings;
            chosen.push_back(std::string("store=") + store);
            const Compression other = compressed(model, "laser", chosen);
            EXPECT_EQ(details_of(other)["matrices"][0]["stored"], store);
            EXPECT_EQ(std::holds_alternative<Dense>(other.model.topology.at(0, Slot::ffn_up)),
                      std::string(store) == "dense");
            EXPECT_LE(largest_difference(weights(other.model, 0, Slot::ffn_up),
                                         weights(result.model, 0, Slot::ffn_up)),
                      1e-5);
        }
    }
}

TEST(Laser, RankByEnergy) {
    const Model model = factor_model();
    const Settings settings = {"slots=ffn.up", "energy=0.8", "type=f32"};
    const Compression result = compressed(model, "laser", settings);
    for (const json& matrix : details_of(result)["matrices"]) {
        const double error = matrix["relative_error"];
        EXPECT_GE(1 - error * error, 0.8);
        const int64_t rank = matrix["rank"];
        const Svd less = truncated_svd(weights(model, matrix["layers"][0], Slot::ffn_up), 40, 24, rank - 1);
        EXPECT_LT(1 - less.relative_error * less.relative_error, 0.8);
    }
    const Compression plan = planned(model, "laser", settings);
    EXPECT_EQ(plan.after().parameters, plan.before.parameters);
    EXPECT_NE(to_text(plan).find("known when the weights are read"), std::string::npos);
}

TEST(Laser, RandomisedAsTheAuthors) {
    const Model model = factor_model();
    const auto error = [&](const Settings& more) {
        Settings settings = {"slots=ffn.down", "layers=0", "rank=6"};
        settings.insert(settings.end(), more.begin(), more.end());
        return details_of(compressed(model, "laser", settings))["matrices"][0]["relative_error"]
            .get<double>();
    };
    const double exact = error({}), randomized = error({"svd=randomized"});
    EXPECT_GT(randomized, exact);
    EXPECT_LT(randomized, exact * 1.1);
    EXPECT_EQ(randomized, error({"svd=randomized", "seed=0"}));
    EXPECT_NE(randomized, error({"svd=randomized", "seed=1"}));
}

TEST(Laser, TiedLayersAreDecomposedOnce) {
    const Model model = tied_model();
    const Compression result = compressed(model, "laser", {"slots=all", "rank=2"});
    EXPECT_EQ(result.model.topology.layers[2], result.model.topology.layers[0]);
    EXPECT_EQ(details_of(result)["matrices"].size(), 2U * 7);
    expect_error(ErrorCode::unsupported, {"layer 0", "layer 2"}, [&] {
        planned(model, "laser", {"slots=attn.q", "rank=2", "layers=2"});
    });
}

TEST(Laser, RefusesWhatEarlierStepsLeft) {
    const Model model = factor_model();
    const Model shared = planned(model, "direct_share", {"ratio=0.34"}).model;
    expect_error(ErrorCode::unsupported, {"layer", "attn.q", "heads are shared"}, [&] {
        planned(shared, "laser", {"slots=attn.q", "rank=2"});
    });
    // The FFN after head sharing is free.
    EXPECT_LT(planned(shared, "laser", {"slots=ffn", "rank=2"}).after().parameters,
              account(shared).model.parameters);
    const Model factored = planned(model, "laser", {"slots=ffn.up", "rank=2", "layers=1"}).model;
    expect_error(ErrorCode::unsupported, {"layer 1 ffn.up", "made factors"}, [&] {
        planned(factored, "laser", {"slots=ffn", "rank=2"});
    });
}

TEST(Laser, PlansAndResumes) {
    expect_planned(factor_model(), "laser", {"slots=ffn", "rho=0.3"});
    expect_resumable(factor_model(), {"laser", {"slots=ffn", "rank=7"}, {"slots=ffn", "rank=6"}, 9});
    expect_resumable(factor_model(),
                     {"laser", {"slots=ffn", "rank=7"}, {"slots=ffn", "rank=7", "svd=randomized"}, 9});
    expect_resumable(factor_model(), {"laser",
                                      {"slots=ffn.up", "energy=0.5", "svd=randomized"},
                                      {"slots=ffn.up", "energy=0.9", "svd=randomized"},
                                      6});
}

TEST(Laser, QuantizedSourcesGive16Bits) {
    const SmallShape shape = {.layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 64};
    const Model model =
        small_model(shape, scattered, {{Slot::ffn_up, DType::Q8_0}, {Slot::ffn_gate, DType::BF16}});
    const Model plan = planned(model, "laser", {"slots=ffn", "rank=3"}).model;
    EXPECT_EQ(plan.tensor("blk.0.ffn_up.u").type, DType::F16);
    EXPECT_EQ(plan.tensor("blk.0.ffn_gate.v").type, DType::BF16);
    EXPECT_EQ(plan.tensor("blk.0.ffn_down.u").type, DType::F32);
}

// TensorLLM, Table III, case 1: one matrix of Llama-2-7B, from its shape alone.
TEST(Laser, PlansFromShapesAlone) {
    const Model model = shapes_of(llama_config(32, 4096, 32, 11008));
    const Compression plan = planned(model, "laser", {"slots=ffn.up", "layers=30", "rate=8"});
    EXPECT_EQ(plan.before.parameters - plan.after().parameters, 4096U * 11008 - 819U * (4096 + 11008));
}

class LaserFamilies : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, LaserFamilies, testing::ValuesIn(fixture_families()),
                         [](const auto& test) { return test.param; });

TEST_P(LaserFamilies, AllMatrices) {
    const Model model = fixture("hf/" + GetParam());
    const Compression result = compressed(model, "laser", {"slots=all", "rho=0.25", "type=f32"});
    for (const json& matrix : details_of(result)["matrices"]) {
        EXPECT_NEAR(relative_loss(result.model, model, matrix["layers"][0], {slot_from_name(matrix["slot"])}),
                    matrix["relative_error"], 1e-5);
    }
    expect_round_trip(result);
    const auto tokens = random_tokens(20, model.config.n_vocab, 3);
    EXPECT_GT(largest_difference(outputs(model, tokens), outputs(result.model, tokens)), 1e-3);
}

TEST(Laser, Errors) {
    const Model model = factor_model();
    const auto usage = [&](const Settings& settings, const std::vector<std::string>& parts) {
        expect_error(ErrorCode::usage, parts, [&] { planned(model, "laser", settings); });
    };
    usage({}, {"give one of rho", "none"});
    usage({"rho=0"}, {"give one of rho"});
    usage({"rank=0"}, {"give one of rho"});
    usage({"rho=0.1", "rank=2"}, {"give one of rho", "got 2"});
    usage({"rho=1.1"}, {"rho", "1.1"});
    usage({"rate=10"}, {"rank 0"});
    usage({"rate=10.5"}, {"rate"});
    usage({"rho=0.01"}, {"layer 0 ffn.gate", "0.01 of 24", "rank 0"});
    usage({"rank=2", "layers=2-3"}, {"layers 0 to 2"});
    usage({"rank=2", "slots=token_embd"}, {"token_embd"});
    usage({"rank=2", "svd=fast"}, {"svd", "randomized"});
    const Model bad = model_with_nan(Slot::ffn_up);
    expect_error(ErrorCode::input, {"'blk.1.ffn_up.weight'", "row 3, column 5", "nan"},
                 [&] { compressed(bad, "laser", {"rank=2"}); });
}

}  // namespace
}  // namespace refold
