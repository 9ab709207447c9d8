#include "compress/factor_checks.h"
#include "linalg/svd.h"

namespace refold {
namespace {

using nlohmann::json;

const std::vector<Slot> kFfn = {Slot::ffn_gate, Slot::ffn_up, Slot::ffn_down};

// Matrices that are sums of `rank` outer products with vectors shared by a layer's FFN; one layer is a
// multiple of another. ffn.down is the transpose of such a matrix.
Model low_rank_model(int64_t rank, bool same_in_all_layers) {
    return small_model(kFactorShape, [=](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (slot != Slot::ffn_gate && slot != Slot::ffn_up && slot != Slot::ffn_down)
            return scattered(layer, slot, row, column);
        const int64_t i = slot == Slot::ffn_down ? row : column, j = slot == Slot::ffn_down ? column : row;
        const size_t seed = same_in_all_layers ? 0 : layer;
        float sum = 0;
        for (int64_t r = 0; r < rank; ++r)
            sum += scattered(seed, Slot::attn_q, r, i) * scattered(seed, Slot::attn_k, r, j) *
                   scattered(layer, slot, r, 1000);
        return sum;
    });
}

TEST(Trawl, CpFindsWhatTheMatricesHaveInCommon) {
    const Model model = low_rank_model(3, false);
    const Compression result = compressed(model, "trawl", {"rank=3", "tol=0", "sweeps=400", "type=f32"});
    for (size_t p = 0; p < 3; ++p) {
        EXPECT_LE(relative_loss(result.model, model, p, kFfn), 1e-3) << p;
        for (const Slot slot : kFfn) EXPECT_LE(relative_loss(result.model, model, p, {slot}), 1e-2);
        for (const Slot slot : kQkvo) EXPECT_EQ(relative_loss(result.model, model, p, {slot}), 0.0);
    }
    // Two factors and a row of scales per matrix.
    EXPECT_EQ(result.before.parameters - result.after().parameters, 3U * (3 * 24 * 40 - 3 * (24 + 40 + 3)));
    expect_round_trip(result);
}

TEST(Trawl, WindowsOfLayers) {
    const Model model = low_rank_model(2, true);
    const Compression result =
        compressed(model, "trawl", {"rank=2", "window=2", "tol=0", "sweeps=400", "type=f32"});
    const json stacks = details_of(result)["stacks"];
    ASSERT_EQ(stacks.size(), 2U);
    EXPECT_EQ(stacks[0]["dims"], (json{24, 40, 6}));
    EXPECT_EQ(stacks[1]["dims"], (json{24, 40, 3}));
    for (size_t p = 0; p < 3; ++p) EXPECT_LE(relative_loss(result.model, model, p, kFfn), 1e-3) << p;
    const auto u = [&](size_t p) { return std::get<LowRank>(result.model.topology.at(p, Slot::ffn_down)).u; };
    EXPECT_EQ(u(0), u(1));
    EXPECT_NE(u(0), u(2));
}

TEST(Trawl, ComparesWithSvdsOfEqualSize) {
    const Model model = factor_model();
    for (const Settings& settings : {Settings{"rank=10"}, {"decomposition=tucker", "ranks=12,20,2"}}) {
        Settings window = settings;
        window.emplace_back("window=2");
        const json stack = details_of(compressed(model, "trawl", window))["stacks"][0];
        const int64_t rank = stack["svd_rank"], per_rank = 6 * (24 + 40);
        EXPECT_GT(rank, 0);
        EXPECT_LE(rank * per_rank, stack["parameters_after"]);
        EXPECT_GT((rank + 1) * per_rank, stack["parameters_after"]);
        ASSERT_EQ(stack["svd"].size(), 6U);
        double left = 0, all = 0;
        for (const json& svd : stack["svd"]) {
            const Slot slot = slot_from_name(svd["slot"]);
            const SlotShape shape = slot_shape(slot, model.config);
            const std::vector<float> matrix = weights(model, svd["layers"][0], slot);
            const double error = truncated_svd(matrix, shape.out, shape.in, rank).relative_error;
            EXPECT_NEAR(svd["relative_error"], error, 1e-5);
            left += error * error * square(matrix);
            all += square(matrix);
        }
        EXPECT_NEAR(stack["svd_error"], std::sqrt(left / all), 1e-5);
    }
    const json without = details_of(compressed(model, "trawl", {"rank=10", "compare=false"}));
    EXPECT_FALSE(without["stacks"][0].contains("svd"));
}

TEST(Trawl, ErrorsAreThoseOfTheMatrices) {
    const Model model = factor_model();
    for (const Settings& settings : {Settings{"rank=10"}, {"decomposition=tucker", "ranks=12,20,2"}}) {
        Settings all = settings;
        all.emplace_back("type=f32");
        const Compression result = compressed(model, "trawl", all);
        const json stacks = details_of(result)["stacks"];
        ASSERT_EQ(stacks.size(), 3U);
        for (size_t p = 0; p < 3; ++p) {
            EXPECT_NEAR(stacks[p]["relative_error"], relative_loss(result.model, model, p, kFfn), 1e-4);
            EXPECT_GT(stacks[p]["relative_error"], 0.1);
        }
        expect_round_trip(result);
    }
}

TEST(Trawl, TuckerOfFullRanksIsTheIdentity) {
    const Model model = factor_model();
    for (const char* stack : {"stack=ffn", "stack=mha"}) {
        const Compression result =
            compressed(model, "trawl", {stack, "decomposition=tucker", "ranks=99,99,99", "type=f32"});
        for (size_t p = 0; p < 3; ++p) {
            for (const auto& [slot, expression] : model.topology.layers[p])
                EXPECT_EQ(weights(result.model, p, slot), weights(model, p, slot)) << p << slot_name(slot);
        }
        EXPECT_NE(to_text(result).find("more than the matrices hold"), std::string::npos);
    }
}

TEST(Trawl, OnlyMatricesOfOneShapeAreStacked) {
    // 4 query heads of 8, 2 key/value heads.
    const Compression grouped = planned(factor_model(), "trawl", {"stack=mha", "layers=1", "rank=4"});
    const json stacks = details_of(grouped)["stacks"];
    ASSERT_EQ(stacks.size(), 2U);
    EXPECT_EQ(stacks[0]["matrices"], (json{"blk.1.attn_k.weight", "blk.1.attn_v.weight"}));
    EXPECT_EQ(stacks[0]["dims"], (json{24, 16, 2}));
    EXPECT_EQ(stacks[1]["matrices"], (json{"blk.1.attn_q.weight", "blk.1.attn_output.weight"}));
    EXPECT_EQ(stacks[1]["dims"], (json{24, 32, 2}));
    SmallShape shape = kFactorShape;
    shape.kv_heads = shape.heads;
    const Compression all =
        planned(small_model(shape, scattered), "trawl", {"stack=mha", "layers=1", "rank=4"});
    ASSERT_EQ(details_of(all)["stacks"].size(), 1U);
    EXPECT_EQ(details_of(all)["stacks"][0]["dims"], (json{24, 32, 4}));
}

TEST(Trawl, TiedLayersAreDecomposedOnce) {
    const Compression result = compressed(tied_model(), "trawl", {"rank=4", "window=2"});
    EXPECT_EQ(details_of(result)["stacks"].size(), 1U);
    EXPECT_EQ(details_of(result)["stacks"][0]["dims"], (json{24, 40, 6}));
    EXPECT_EQ(result.model.topology.layers[2], result.model.topology.layers[0]);
}

TEST(Trawl, SmallFactorsStayFloat32) {
    const Model cp = planned(factor_model(), "trawl", {"rank=4", "type=f16"}).model;
    EXPECT_EQ(cp.tensor("blk.0.ffn_gate.stack_u").type, DType::F16);
    EXPECT_EQ(cp.tensor("blk.0.ffn_gate.stack_s").type, DType::F32);
    const Model tucker =
        planned(factor_model(), "trawl", {"decomposition=tucker", "ranks=4,4,2", "type=f16"}).model;
    EXPECT_EQ(tucker.tensor("blk.0.ffn_gate.stack_core").type, DType::F16);
    EXPECT_EQ(tucker.tensor("blk.0.ffn_gate.stack_u1").type, DType::F16);
    EXPECT_EQ(tucker.tensor("blk.0.ffn_gate.stack_u2").type, DType::F32);
    EXPECT_EQ(tucker.tensor("blk.0.ffn_gate.stack_u3").type, DType::F32);
}

TEST(Trawl, PlansAndResumes) {
    expect_planned(factor_model(), "trawl", {"rank=5"});
    expect_planned(factor_model(), "trawl", {"decomposition=tucker", "ranks=5,6,2", "stack=mha"});
    for (const char* other : {"rank=6", "seed=1", "tol=0.5", "sweeps=2"})
        expect_resumable(factor_model(),
                         {"trawl",
                          {"rank=5"},
                          std::string(other) == "rank=6" ? Settings{other} : Settings{"rank=5", other},
                          3});
    expect_resumable(factor_model(), {"trawl",
                                      {"decomposition=tucker", "ranks=5,6,2", "stack=mha"},
                                      {"decomposition=tucker", "ranks=5,7,2", "stack=mha"},
                                      6});
}

class TrawlFamilies : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, TrawlFamilies, testing::ValuesIn(fixture_families()),
                         [](const auto& test) { return test.param; });

TEST_P(TrawlFamilies, BothModulesBothDecompositions) {
    const Model model = fixture("hf/" + GetParam());
    if (!model.topology.has(0, Slot::ffn_down) && has_experts(model) && model.config.experts.empty())
        GTEST_SKIP();
    const Model ffn = compressed(model, "trawl", {"rank=16", "sweeps=20", "type=f32"}).model;
    const Compression result = compressed(
        ffn, "trawl", {"stack=mha", "decomposition=tucker", "ranks=24,24,2", "sweeps=5", "type=f32"});
    EXPECT_LT(result.after().parameters, account(model).model.parameters);
    expect_round_trip(result);
    const auto tokens = random_tokens(20, model.config.n_vocab, 3);
    EXPECT_GT(largest_difference(outputs(model, tokens), outputs(result.model, tokens)), 1e-3);
}

TEST(Trawl, Errors) {
    const Model model = factor_model();
    const auto usage = [&](const Settings& settings, const std::vector<std::string>& parts) {
        expect_error(ErrorCode::usage, parts, [&] { planned(model, "trawl", settings); });
    };
    usage({"rank=0"}, {"rank"});
    usage({"decomposition=tucker", "ranks=0,1,1"}, {"0,1,1"});
    usage({"window=0"}, {"window"});
    usage({"layers=3"}, {"layers 0 to 2"});
    usage({"stack=all"}, {"stack", "mha"});
    const Model factored = planned(model, "trawl", {"rank=4", "layers=1"}).model;
    expect_error(ErrorCode::unsupported, {"layer 1 ffn.gate", "made factors"},
                 [&] { planned(factored, "trawl", {"rank=4"}); });
    const Model bad = model_with_nan(Slot::ffn_down);
    expect_error(ErrorCode::input, {"'blk.1.ffn_down.weight'", "row 3, column 5", "nan"},
                 [&] { compressed(bad, "trawl", {"rank=4"}); });
}

}  // namespace
}  // namespace refold
