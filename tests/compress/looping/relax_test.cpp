#include <nlohmann/json.hpp>

#include "compress/loop_fixtures.h"
#include "compress/looping/norm_folding.h"
#include "compress/looping/rank_budget.h"
#include "linalg/svd.h"
#include "model/hf/shapes.h"
#include "model/materialize.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

using nlohmann::json;

constexpr SmallShape kShape{.layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 24};

Model relaxed(const Model& model, const std::vector<std::string>& settings) {
    Work work;
    return apply_method(model, "relax", settings, work).model;
}

const LowRank& lora(const Model& model, size_t layer, Slot slot) {
    return std::get<Plus>(model.topology.at(layer, slot)).term;
}

int64_t rank_of(const Model& model, size_t layer, Slot slot) {
    const Expression& expression = model.topology.at(layer, slot);
    if (!std::holds_alternative<Plus>(expression)) return 0;
    return model.tensor(lora(model, layer, slot).u).row_elements();
}

TEST(Relax, FullRankWithOwnNormsIsTheDenseModel) {
    const Model dense = small_model(kShape, scattered);
    for (const char* init : {"init=average", "init=stepwise", "init=lower", "init=random"}) {
        for (const char* norms : {"norms=keep", "norms=fold"}) {
            const Model expected = norms == std::string("norms=fold") ? fold_norms(dense, "f32") : dense;
            const Model out = relaxed(dense, {"loops=2", "rank=1000", init, norms});
            for (size_t p = 0; p < 4; ++p) {
                for (const auto& [slot, expression] : dense.topology.layers[p])
                    EXPECT_LE(largest_difference(weight(out, p, slot), weight(expected, p, slot)), 1e-5)
                        << init << norms << p << slot_name(slot);
            }
        }
    }
}

class RelaxFamilies : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, RelaxFamilies, testing::ValuesIn(fixtures_of_equal_layers()),
                         [](const auto& test) { return test.param; });

TEST_P(RelaxFamilies, FullRankWithOwnNormsComputesTheDenseLogits) {
    const Model dense = fixture_model(GetParam());
    const Model out = relaxed(dense, {loops_of(dense), "rank=1000", "norms=keep", "type=f32"});
    EXPECT_LE(largest_difference(outputs_of(without_sharing(out)), outputs_of(dense)), 2e-4);
    saved_and_loaded(out);
}

TEST(Relax, TiedNormsAreNot) {
    const Model dense = small_model(kShape, scattered);
    EXPECT_GT(
        largest_difference(outputs_of(without_sharing(relaxed(dense, {"rank=1000"}))), outputs_of(dense)),
        0.1);
}

// B A is the best approximation of W - W' of its rank, and A's rows are orthonormal.
TEST(Relax, LoraIsTheTruncatedDecompositionOfTheResidual) {
    const Model dense = small_model(kShape, scattered);
    const Model out = relaxed(dense, {"rank=3"});
    for (const Slot slot : {Slot::attn_k, Slot::ffn_up, Slot::ffn_down}) {
        const SlotShape shape = slot_shape(slot, dense.config);
        const auto own = weight(dense, 3, slot), other = weight(dense, 1, slot);
        std::vector<float> residual = own;
        for (size_t i = 0; i < residual.size(); ++i) residual[i] -= (own[i] + other[i]) / 2;
        const auto s = singular_values(residual, shape.out, shape.in);
        double rest = 0, error = 0;
        for (size_t i = 3; i < s.size(); ++i) rest += s[i] * s[i];
        const auto approximation = weight(out, 3, slot);
        for (size_t i = 0; i < own.size(); ++i) error += std::pow(own[i] - approximation[i], 2.0);
        EXPECT_NEAR(std::sqrt(error), std::sqrt(rest), 1e-4 * std::sqrt(rest)) << slot_name(slot);

        const auto a = floats_of(out, lora(out, 3, slot).v), b = floats_of(out, lora(out, 3, slot).u);
        for (size_t i = 0; i < 3; ++i) {
            double column = 0;
            for (size_t r = 0; r < static_cast<size_t>(shape.out); ++r) column += std::pow(b[r * 3 + i], 2.0);
            EXPECT_NEAR(std::sqrt(column), s[i], 1e-4 * s[0]);
            for (size_t j = 0; j < 3; ++j) {
                double product = 0;
                const auto in = static_cast<size_t>(shape.in);
                for (size_t c = 0; c < in; ++c) product += static_cast<double>(a[i * in + c]) * a[j * in + c];
                EXPECT_NEAR(product, i == j ? 1 : 0, 1e-5);
            }
        }
    }
}

TEST(Relax, ZeroResidualsGetAnOrdinaryLora) {
    const Model dense = small_model(kShape, scattered);
    Work work;
    const Compression done = apply_method(dense, "relax", {"init=lower", "rank=2", "seed=5"}, work);
    const Model& out = done.model;
    EXPECT_EQ(json::parse(done.steps[0].report.details)["zero_residuals"], 2 * 7);
    const auto b = floats_of(out, lora(out, 1, Slot::attn_q).u),
               a = floats_of(out, lora(out, 1, Slot::attn_q).v);
    EXPECT_EQ(b, std::vector<float>(16 * 2));
    double square = 0;
    for (const float x : a) square += static_cast<double>(x) * x;
    EXPECT_NEAR(std::sqrt(square / static_cast<double>(a.size())), 0.02, 0.01);
    EXPECT_NE(a, floats_of(out, lora(out, 0, Slot::attn_q).v));
    EXPECT_EQ(weight(out, 1, Slot::attn_q), weight(dense, 1, Slot::attn_q));
    EXPECT_EQ(rank_of(out, 0, Slot::ffn_up), rank_of(out, 2, Slot::ffn_up));  // counted like the others
    EXPECT_GT(
        floats_of(out, lora(out, 2, Slot::attn_q).u)[0] * floats_of(out, lora(out, 2, Slot::attn_q).u)[0], 0);
}

TEST(Relax, RanksByModuleAreClipped) {
    const Model out = relaxed(small_model(kShape, scattered), {"ranks=5,100,7,9"});
    EXPECT_EQ(rank_of(out, 2, Slot::attn_q), 5);
    EXPECT_EQ(rank_of(out, 2, Slot::attn_k), 8);
    EXPECT_EQ(rank_of(out, 2, Slot::attn_v), 8);
    EXPECT_EQ(rank_of(out, 2, Slot::attn_o), 7);
    for (const Slot slot : {Slot::ffn_gate, Slot::ffn_up, Slot::ffn_down})
        EXPECT_EQ(rank_of(out, 2, slot), 9);
}

TEST(Relax, EnergyTakesTheSmallestRankThatHoldsIt) {
    const Model dense = small_model(kShape, scattered);
    const Model out = relaxed(dense, {"energy=0.7"});
    for (const Slot slot : {Slot::attn_q, Slot::ffn_down}) {
        const SlotShape shape = slot_shape(slot, dense.config);
        auto residual = weight(dense, 0, slot);
        const auto other = weight(dense, 2, slot);
        for (size_t i = 0; i < residual.size(); ++i) residual[i] = (residual[i] - other[i]) / 2;
        const auto s = singular_values(residual, shape.out, shape.in);
        double total = 0, sum = 0;
        for (const double x : s) total += x * x;
        int64_t rank = 0;
        while (sum < 0.7 * total) sum += std::pow(s[static_cast<size_t>(rank++)], 2);
        EXPECT_EQ(rank_of(out, 0, slot), rank);
        EXPECT_GT(rank, 1);
    }
}

TEST(Relax, BudgetByHand) {
    // Gains per parameter: 100/10, 25/10 and 1/10; 64/20 and 36/20.
    const std::vector<relax::Spectrum> spectra = {{4, 6, {10, 5, 1}}, {8, 12, {8, 6}}};
    EXPECT_EQ(relax::ranks_for_budget(spectra, 0), (std::vector<int64_t>{0, 0}));
    EXPECT_EQ(relax::ranks_for_budget(spectra, 10), (std::vector<int64_t>{1, 0}));
    EXPECT_EQ(relax::ranks_for_budget(spectra, 30), (std::vector<int64_t>{1, 1}));
    EXPECT_EQ(relax::ranks_for_budget(spectra, 40), (std::vector<int64_t>{2, 1}));
    EXPECT_EQ(relax::ranks_for_budget(spectra, 1000), (std::vector<int64_t>{3, 2}));
    EXPECT_EQ(relax::ranks_for_budget({{5, 5, {1, 1}}, {5, 5, {9, 8}}}, 20), (std::vector<int64_t>{0, 2}));
    EXPECT_EQ(relax::ranks_for_budget({{5, 5, {3, 0}}, {5, 5, {0, 0}}}, 40), (std::vector<int64_t>{1, 0}));
}

TEST(Relax, BudgetBoundsTheParameters) {
    const Model dense = small_model(kShape, scattered);
    const int64_t maps = 4 * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24);
    Work work;
    const Compression done = apply_method(dense, "relax", {"budget=0.2"}, work);
    const int64_t held = json::parse(done.steps[0].report.details)["lora_parameters"];
    EXPECT_LE(held, maps / 5);
    EXPECT_GT(held, maps / 5 - 24 - 16);
    // The chosen directions have more energy than the same number divided evenly.
    const auto lost = [&](const Model& model) {
        double sum = 0;
        for (size_t p = 0; p < 4; ++p) {
            for (const auto& [slot, expression] : dense.topology.layers[p]) {
                if (!is_matrix(slot)) continue;
                const auto a = weight(model, p, slot), b = weight(dense, p, slot);
                for (size_t i = 0; i < a.size(); ++i) sum += std::pow(a[i] - b[i], 2.0);
            }
        }
        return sum;
    };
    EXPECT_LT(lost(done.model), lost(relaxed(dense, {"rank=1"})));
}

TEST(Relax, PlanHasTheFinalShapes) {
    const Model dense = small_model(kShape, scattered);
    const std::vector<std::string> settings = {"rank=5", "norms=fold"};
    const Compression planned = plan_method(without_numbers(dense), "relax", settings);
    const Model out = relaxed(dense, settings);
    EXPECT_EQ(planned.model.topology, out.topology);
    EXPECT_EQ(planned.after().parameters, account(out).model.parameters);
    EXPECT_EQ(planned.after().bytes, account(out).model.bytes);
    for (const char* rule : {"energy=0.5", "budget=0.1"})
        plan_method(without_numbers(dense), "relax", {rule});
}

// The paper's three models, as their config.json has them.
constexpr const char* kGemma2b = R"({"model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18,
    "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 16384,
    "vocab_size": 256000, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "hidden_act": "gelu"})";
constexpr const char* kTinyLlama = R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu"})";
constexpr const char* kPythia1b = R"({"model_type": "gpt_neox", "hidden_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 8, "intermediate_size": 8192, "vocab_size": 50304, "rotary_pct": 0.25,
    "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "hidden_act": "gelu", "use_parallel_residual": true})";

// Table 10: parameters without embeddings and head, in 10^9 with two digits (TinyLlama's cut off, not
// rounded).
TEST(Relax, SizesAreThoseOfThePaper) {
    struct Row {
        const char* config;
        int loops;
        std::vector<double> sizes;  // recursive; rank 64, 128, 256, 512
    };
    const TempFolder folder;
    for (const Row& row :
         {Row{kGemma2b, 2, {0.99, 1.07, 1.15, 1.30, 1.60}}, Row{kGemma2b, 3, {0.66, 0.74, 0.82, 0.97, 1.27}},
          Row{kTinyLlama, 2, {0.48, 0.53, 0.58, 0.68, 0.86}},
          Row{kPythia1b, 2, {0.40, 0.44, 0.48, 0.55, 0.70}}}) {
        write_all(folder / "config.json", row.config);
        const Model dense = load_hf_shapes(folder / "config.json");
        const auto billions = [&](const Model& model) {
            auto parameters = static_cast<double>(account(model).model.parameters);
            for (const char* name : {"token_embd.weight", "output.weight"}) {
                if (model.tensors.contains(name))
                    parameters -= static_cast<double>(model.tensor(name).elements());
            }
            return parameters / 1e9;
        };
        const std::string loops = fmt::format("loops={}", row.loops);
        EXPECT_NEAR(billions(plan_method(dense, "recursive", {loops}).model), row.sizes[0], 0.0065);
        for (size_t i = 0; i < 4; ++i) {
            const std::string rank = fmt::format("rank={}", 64 << i);
            EXPECT_NEAR(billions(plan_method(dense, "relax", {loops, rank}).model), row.sizes[i + 1], 0.0065)
                << row.config << rank;
        }
    }
}

TEST(Relax, FactorsAreSixteenBitsForQuantizedModels) {
    const SmallShape shape{.layers = 2, .heads = 1, .kv_heads = 1, .head_dim = 32, .embd = 32, .ff = 32};
    const Model dense = small_model(shape, scattered, {{Slot::attn_q, DType::Q8_0}});
    const Model out = relaxed(dense, {"rank=32", "init=lower", "norms=keep"});
    EXPECT_EQ(out.tensor(lora(out, 1, Slot::attn_q).u).type, DType::F16);
    EXPECT_EQ(out.tensor("blk.0.attn_q.weight").type, DType::Q8_0);  // copied
    EXPECT_EQ(out.tensor(lora(out, 1, Slot::attn_k).u).type, DType::F32);
    // The residual is relative to the stored weight, so only the factors' rounding is lost.
    EXPECT_LE(largest_difference(weight(out, 1, Slot::attn_q), weight(dense, 1, Slot::attn_q)), 5e-3);
    const Model means = relaxed(dense, {"rank=32", "norms=keep"});
    EXPECT_EQ(means.tensor("blk.0.attn_q.weight").type, DType::F16);
    EXPECT_LE(largest_difference(weight(means, 1, Slot::attn_q), weight(dense, 1, Slot::attn_q)), 5e-3);
}

TEST(Relax, FinishedDecompositionsAreUsedAgain) {
    const TempFolder folder;
    const Model dense = small_model(kShape, scattered);
    const auto run = [&](const std::vector<std::string>& settings) {
        Work work(folder / "work");
        const Model out = apply_method(dense, "relax", settings, work).model;
        return std::pair{weight(out, 3, Slot::ffn_down), work.reused()};
    };
    const auto first = run({"rank=3"}), second = run({"rank=3"});
    EXPECT_EQ(first.second, 0u);
    EXPECT_EQ(second.second, 4u * 7);
    EXPECT_EQ(first.first, second.first);
    EXPECT_EQ(run({"rank=4"}).second, 0u);
}

TEST(Relax, OneRoundIsTheSameModel) {
    const Model dense = small_model(kShape, scattered);
    EXPECT_EQ(relaxed(dense, {"loops=1"}).topology, dense.topology);
}

TEST(Relax, WhatDoesNotFitIsRefused) {
    const Model dense = small_model(kShape, scattered);
    const auto fails = [&](const std::vector<std::string>& settings, const std::vector<std::string>& parts) {
        expect_error(ErrorCode::usage, parts, [&] { relaxed(dense, settings); });
    };
    fails({"rank=0"}, {"rank", "[1,", "0"});
    fails({"energy=1.5"}, {"energy", "[0, 1]"});
    fails({"ranks=1,2,3"}, {"ranks", "4"});
    fails({"ranks=1,2,3,0"}, {"ranks"});
    fails({"ranks=1,2,3,4", "budget=0.1"}, {"exclude each other"});
    fails({"loops=3"}, {"does not divide"});
    const Model broken = small_model(kShape, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        return layer == 2 && slot == Slot::attn_v ? INFINITY : scattered(layer, slot, row, column);
    });
    expect_error(ErrorCode::input, {"'blk.2.attn_v.weight'", "row 0, column 0 is inf"},
                 [&] { relaxed(broken, {}); });
}

}  // namespace
}  // namespace refold
