#include "compress/factor_checks.h"
#include "compress/factorization/head_stack.h"
#include "linalg/svd.h"
#include "linalg/tucker.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

using nlohmann::json;
using tensorllm::Ranks;
using tensorllm::Stack;

Model llama() { return fixture("llama/model.gguf"); }

Stack stack_of(const Model& model, size_t layer) {
    const ModelConfig& c = model.config;
    return {{layer}, kQkvo, {c.n_embd, c.head_dim, 4, c.n_head}, {}};
}

// From the first index contiguous to row major [n_embd, head_dim, 4, heads], the layout of the golden file.
std::vector<float> row_major(const std::vector<float>& x, const std::array<int64_t, 4>& dims) {
    std::vector<float> out;
    for (int64_t i = 0; i < dims[0]; ++i) {
        for (int64_t j = 0; j < dims[1]; ++j) {
            for (int64_t t = 0; t < dims[2]; ++t) {
                for (int64_t h = 0; h < dims[3]; ++h)
                    out.push_back(x[static_cast<size_t>(i + dims[0] * (j + dims[1] * (t + dims[2] * h)))]);
            }
        }
    }
    return out;
}

TEST(TensorLlmGolden, TensorLiesAsInThePaper) {
    const Model model = llama();
    const Stack stack = stack_of(model, 1);
    EXPECT_EQ(row_major(tensorllm::tensor_of(model, stack), stack.dims),
              golden("tensorllm_llama.safetensors", "layer1.tensor"));
}

TEST(TensorLlmGolden, ReconstructionErrorsAndLogits) {
    const Model model = llama();
    const Compression result = compressed(model, "tensorllm", {"ranks=32,8,3"});
    const std::vector<double> errors = {0.8017270157, 0.8009439649, 0.7990300747, 0.8009532916};
    const json stacks = details_of(result)["stacks"];
    ASSERT_EQ(stacks.size(), errors.size());
    for (size_t p = 0; p < errors.size(); ++p) {
        EXPECT_NEAR(stacks[p]["relative_error"], errors[p], 1e-4);
        EXPECT_NEAR(relative_loss(result.model, model, p, kQkvo), errors[p], 1e-4);
    }
    const Model dense = without_sharing(result.model);
    const Stack stack = stack_of(dense, 1);
    const std::vector<float> expected = golden("tensorllm_llama.safetensors", "layer1.reconstruction");
    const float largest = std::abs(*std::max_element(
        expected.begin(), expected.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
    EXPECT_LE(largest_difference(row_major(tensorllm::tensor_of(dense, stack), stack.dims), expected),
              1e-3 * static_cast<double>(largest));

    const std::vector<int32_t> tokens = {496, 77,  329, 47, 24,  158, 405, 268, 521,
                                         344, 123, 250, 54, 300, 367, 425, 513};
    EXPECT_LE(
        largest_difference(outputs(result.model, tokens), golden("tensorllm_llama.safetensors", "logits")),
        5e-3);
}

class TensorLlmFamilies : public testing::TestWithParam<std::string> {
protected:
    static Model model() { return fixture("hf/" + GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Families, TensorLlmFamilies, testing::ValuesIn(fixture_families()),
                         [](const auto& test) { return test.param; });

TEST_P(TensorLlmFamilies, FullRanksAreTheIdentity) {
    const Model original = model();
    for (const char* kv : {"kv=repeat", "kv=separate"}) {
        const Compression result = compressed(original, "tensorllm", {"ranks=4096,4096,4", kv, "type=f32"});
        for (size_t p = 0; p < original.topology.layers.size(); ++p) {
            for (const Slot slot : kQkvo) {
                const auto expected = weights(original, p, slot), got = weights(result.model, p, slot);
                const bool copies = original.config.q_per_kv() > 1 && std::string(kv) == "kv=repeat";
                if (copies) {
                    EXPECT_LE(largest_difference(got, expected), 1e-6) << p << slot_name(slot);
                } else {
                    EXPECT_EQ(got, expected) << p << slot_name(slot);
                }
            }
        }
        for (const auto& stack : details_of(result)["stacks"]) EXPECT_EQ(stack["relative_error"], 0.0);
    }
}

TEST_P(TensorLlmFamilies, FactorsAreWhatTheReportSaysAndSurviveAFile) {
    const Model original = model();
    const ModelConfig& c = original.config;
    const Compression result = compressed(original, "tensorllm", {"ranks=20,6,3", "layers=1", "type=f32"});
    const json stacks = details_of(result)["stacks"];
    ASSERT_EQ(stacks.size(), 1U);
    const json& stack = stacks[0];
    EXPECT_NEAR(relative_loss(result.model, original, 1, kQkvo), stack["matrix_error"], 1e-5);
    EXPECT_GT(stack["matrix_error"], 0.3);
    EXPECT_LT(stack["relative_error"], 1);
    const auto after = static_cast<uint64_t>(20 * 6 * 3 * c.n_head + 20 * c.n_embd + 6 * c.head_dim + 3 * 4),
               before = static_cast<uint64_t>(2 * c.n_embd * c.head_dim * (c.n_head + c.n_head_kv));
    EXPECT_EQ(stack["parameters_after"], after);
    EXPECT_EQ(stack["parameters_before"], before);
    EXPECT_EQ(result.before.parameters - before + after, result.after().parameters);
    for (const Slot slot : kQkvo) EXPECT_EQ(weights(result.model, 0, slot), weights(original, 0, slot));
    expect_round_trip(result);

    const auto tokens = random_tokens(40, c.n_vocab, 3);
    EXPECT_GT(largest_difference(outputs(original, tokens), outputs(result.model, tokens)), 1e-3);
}

// Averaging the copies of a key/value head is the mean of the core's slices.
TEST(TensorLlm, MeansOfCopiesAreMeansOfSlices) {
    const Model model = factor_model();
    const Compression result = compressed(model, "tensorllm", {"ranks=9,4,3", "type=f32"});
    const Stack stack = stack_of(model, 1);
    const TuckerResult tucker =
        partial_tucker(tensorllm::tensor_of(model, stack), stack.dims, {.ranks = {9, 4, 3}});
    const std::vector<float> full = reconstruct(tucker, stack.dims);
    const auto [width, head_dim, roles, heads] = stack.dims;
    for (const int64_t role : {1, 2}) {
        const std::vector<float> got = weights(result.model, 1, kQkvo[static_cast<size_t>(role)]);
        for (int64_t row = 0; row < heads / 2 * head_dim; ++row) {
            // Keys of this family are stored as pairs.
            const int64_t column = role == 1 ? rotary_row(row % head_dim, head_dim) : row % head_dim;
            for (int64_t i = 0; i < width; ++i) {
                double mean = 0;
                for (int64_t copy = 0; copy < 2; ++copy) {
                    const int64_t h = row / head_dim * 2 + copy;
                    mean +=
                        full[static_cast<size_t>(i + width * (column + head_dim * (role + roles * h)))] / 2;
                }
                ASSERT_NEAR(got[static_cast<size_t>(row * width + i)], mean, 1e-5);
            }
        }
    }
    const json details = details_of(result)["stacks"][1];
    EXPECT_NEAR(details["relative_error"], tucker.relative_error, 1e-6);
    EXPECT_NEAR(details["matrix_error"], relative_loss(result.model, model, 1, kQkvo), 1e-5);
    EXPECT_NE(details["matrix_error"], details["relative_error"]);
}

TEST(TensorLlm, SeparateKeysAndValuesAreNotRepeated) {
    const Model model = factor_model();
    const Compression result =
        compressed(model, "tensorllm", {"ranks=9,4,3", "kv=separate", "layers=1", "type=f32"});
    const json stacks = details_of(result)["stacks"];
    ASSERT_EQ(stacks.size(), 2U);
    EXPECT_EQ(stacks[0]["slots"], (json{"attn.q", "attn.o"}));
    EXPECT_EQ(stacks[0]["dims"], (json{24, 8, 2, 4}));
    EXPECT_EQ(stacks[1]["slots"], (json{"attn.k", "attn.v"}));
    EXPECT_EQ(stacks[1]["dims"], (json{24, 8, 2, 2}));
    EXPECT_EQ(stacks[1]["ranks"], (json{9, 4, 2}));
    EXPECT_EQ(stacks[1]["parameters_after"], 9 * 4 * 2 * 2 + 9 * 24 + 4 * 8 + 2 * 2);
    EXPECT_NEAR(relative_loss(result.model, model, 1, {Slot::attn_q, Slot::attn_o}),
                stacks[0]["relative_error"], 1e-5);
    EXPECT_NEAR(relative_loss(result.model, model, 1, {Slot::attn_k, Slot::attn_v}),
                stacks[1]["relative_error"], 1e-5);
}

TEST(TensorLlm, SingleMatrices) {
    const Model model = factor_model();
    for (const Slot slot : kQkvo) {
        const Compression result = compressed(
            model, "tensorllm", {"ranks=9,4,4", std::string("slots=") + slot_name(slot), "type=f32"});
        const json stack = details_of(result)["stacks"][2];
        const int64_t heads = slot == Slot::attn_q || slot == Slot::attn_o ? 4 : 2;
        EXPECT_EQ(stack["dims"], (json{24, 8, 1, heads}));
        EXPECT_EQ(stack["ranks"], (json{9, 4, 1}));
        for (const Slot other : kQkvo) {
            const double loss = relative_loss(result.model, model, 2, {other});
            if (other == slot) {
                EXPECT_NEAR(loss, stack["relative_error"], 1e-5);
                EXPECT_GT(loss, 0.1);
            } else {
                EXPECT_EQ(loss, 0.0);
            }
        }
        expect_round_trip(result);
    }
}

TEST(TensorLlm, RanksByLayer) {
    EXPECT_EQ(tensorllm::ranks_by_layer("3,2,1", {1, 4}, 6),
              (std::map<size_t, Ranks>{{1, {3, 2, 1}}, {4, {3, 2, 1}}}));
    EXPECT_EQ(tensorllm::ranks_by_layer("1-2:3,2,1;4:5,5,5", {0, 1, 4}, 6),
              (std::map<size_t, Ranks>{{1, {3, 2, 1}}, {4, {5, 5, 5}}}));
    const Compression result = planned(factor_model(), "tensorllm", {"ranks=0:9,4,4;2:5,3,2"});
    const json stacks = details_of(result)["stacks"];
    ASSERT_EQ(stacks.size(), 2U);
    EXPECT_EQ(stacks[0]["ranks"], (json{9, 4, 4}));
    EXPECT_EQ(stacks[1]["layers"], json{2});
    EXPECT_EQ(stacks[1]["ranks"], (json{5, 3, 2}));
}

Model paper_model(const std::string& name) {
    if (name == "llama2") return shapes_of(llama_config(32, 4096, 32, 11008));
    std::ifstream file(std::string(REFOLD_FIXTURES) + "/hf/" + name + "/config.json");
    json config = json::parse(file);
    if (name == "gptj") {
        config.update({{"n_embd", 4096}, {"n_head", 16}, {"n_layer", 28}, {"rotary_dim", 64}});
    } else {
        config.update({{"hidden_size", 768},
                       {"num_attention_heads", 12},
                       {"num_hidden_layers", 12},
                       {"intermediate_size", 3072}});
    }
    return shapes_of(config);
}

Recipe published(const std::string& name) {
    return read_recipe(std::string(REFOLD_FIXTURES) + "/../../recipes/" + name + ".yaml");
}

// The recipes' ranks are our own: the paper prints only the rates.
TEST(TensorLlm, CompressionRatesOfThePapersTable2) {
    const std::vector<std::pair<std::string, std::string>> rates = {
        {"roberta_hotpotqa", "1.12"},   {"roberta_fever", "3.74"},    {"roberta_bios", "8.78"},
        {"roberta_wikidataqa", "2.52"}, {"gptj_hotpotqa", "247.30"},  {"gptj_fever", "14.69"},
        {"gptj_bios", "74.68"},         {"gptj_wikidataqa", "46.77"}, {"llama2_hotpotqa", "3.54"},
        {"llama2_fever", "3.54"},       {"llama2_bios", "3.54"},      {"llama2_wikidataqa", "5.81"}};
    for (const auto& [name, rate] : rates) {
        const Model model = paper_model(name.substr(0, name.find('_')));
        const Compression result = plan(model, published("tensorllm_" + name));
        const auto mha = static_cast<uint64_t>(4 * model.config.n_embd * model.config.n_embd);
        const uint64_t left = mha - (result.before.parameters - result.after().parameters);
        EXPECT_EQ(fmt::format("{:.2f}", static_cast<double>(mha) / static_cast<double>(left)), rate) << name;
        EXPECT_EQ(fmt::format("{:.2f}", details_of(result)["stacks"][0]["compression"].get<double>()), rate);
    }
}

TEST(TensorLlm, RecipesOfTables3And4) {
    for (const char* name : {"roberta", "gptj", "llama2"}) {
        const Model model = paper_model(name);
        const auto saved = [&](const char* recipe) {
            const Compression result = plan(model, published(fmt::format(fmt::runtime(recipe), name)));
            return result.before.parameters - result.after().parameters;
        };
        const uint64_t ffn = saved("hybrid_case1_{}");
        EXPECT_GT(saved("hybrid_case2_{}"), ffn);
        EXPECT_EQ(saved("hybrid_case3_{}"), saved("tensorllm_{}_fever") + ffn);
    }
    const Model gptj = paper_model("gptj");
    for (const char* letter : {"q", "k", "v", "o"}) {
        const Compression result = plan(gptj, published(std::string("tensorllm_gptj_fever_") + letter));
        const json stack = details_of(result)["stacks"][0];
        EXPECT_EQ(stack["dims"], (json{4096, 256, 1, 16}));
        EXPECT_EQ(stack["slots"], json{std::string("attn.") + letter});
    }
}

TEST(TensorLlm, SaysWhenFactorsAreLarger) {
    const auto text = [](const Settings& settings) {
        return to_text(planned(factor_model(), "tensorllm", settings));
    };
    EXPECT_NE(text({"ranks=24,8,4"}).find("more numbers than the matrices: keys and values are repeated"),
              std::string::npos);
    EXPECT_NE(text({"ranks=24,8,4", "kv=separate"}).find("choose smaller ranks"), std::string::npos);
    EXPECT_EQ(text({"ranks=6,3,2"}).find("more numbers"), std::string::npos);
}

TEST(TensorLlm, ComparesWithSvdsOfEqualSize) {
    const Model model = factor_model();
    const Compression result = compressed(model, "tensorllm", {"ranks=9,4,3", "layers=0"});
    const json stack = details_of(result)["stacks"][0];
    const int64_t rank = stack["svd_rank"];
    const int64_t per_rank = 2 * (24 + 32) + 2 * (24 + 16);
    EXPECT_LE(rank * per_rank, stack["parameters_after"]);
    EXPECT_GT((rank + 1) * per_rank, stack["parameters_after"]);
    double left = 0, all = 0;
    size_t recorded_matrices = 0;
    for (const Slot slot : kQkvo) {
        const std::vector<float> matrix = weights(model, 0, slot);
        const SlotShape shape = slot_shape(slot, model.config);
        const double error = truncated_svd(matrix, shape.out, shape.in, rank).relative_error;
        const json& recorded = stack["svd"][recorded_matrices++];
        EXPECT_EQ(recorded["layers"], json{0});
        EXPECT_EQ(recorded["slot"], slot_name(slot));
        EXPECT_NEAR(recorded["relative_error"], error, 1e-5);
        left += error * error * square(matrix);
        all += square(matrix);
    }
    EXPECT_NEAR(stack["svd_error"], std::sqrt(left / all), 1e-5);
    const Compression without = compressed(model, "tensorllm", {"ranks=9,4,3", "layers=0", "compare=false"});
    EXPECT_FALSE(details_of(without)["stacks"][0].contains("svd_error"));
}

TEST(TensorLlm, PlansAndResumes) {
    expect_planned(factor_model(), "tensorllm", {"ranks=9,4,3", "layers=0,2"});
    for (const char* other :
         {"tol=0.5", "sweeps=3", "ranks=9,3,4", "compare=false", "slots=attn.q", "kv=separate"}) {
        Settings more = {other};
        if (std::string(other) != "ranks=9,3,4") more.emplace_back("ranks=9,4,3");
        expect_resumable(factor_model(), {"tensorllm", {"ranks=9,4,3"}, more, 3});
    }
}

TEST(TensorLlm, TiedLayersAreDecomposedOnce) {
    const Model model = tied_model();
    const Compression result = compressed(model, "tensorllm", {"ranks=9,4,3"});
    EXPECT_EQ(details_of(result)["stacks"].size(), 2U);
    EXPECT_EQ(result.model.topology.layers[2], result.model.topology.layers[0]);
    EXPECT_EQ(planned(model, "tensorllm", {"ranks=9,4,3", "layers=0,2"}).steps[0].report.lines.size(), 1U);
    expect_error(ErrorCode::unsupported, {"layer 2", "layer 0"},
                 [&] { planned(model, "tensorllm", {"layers=0"}); });
    expect_error(ErrorCode::usage, {"layers 0 and 2", "same ranks"},
                 [&] { planned(model, "tensorllm", {"ranks=0:9,4,3;2:8,4,3"}); });
}

TEST(TensorLlm, TypesOfFactors) {
    const std::map<Slot, DType> quantized = {{Slot::attn_q, DType::F16},
                                             {Slot::attn_k, DType::BF16},
                                             {Slot::attn_v, DType::F16},
                                             {Slot::attn_o, DType::F16}};
    const Model model = planned(factor_model(quantized), "tensorllm", {"ranks=9,4,3"}).model;
    EXPECT_EQ(model.tensor("blk.0.attn.core").type, DType::F16);
    EXPECT_EQ(model.tensor("blk.0.attn.u1").type, DType::F16);
    EXPECT_EQ(model.tensor("blk.0.attn.u2").type, DType::F32);
    EXPECT_EQ(model.tensor("blk.0.attn.u3").type, DType::F32);
    const Model bf16 = planned(factor_model(), "tensorllm", {"ranks=9,4,3", "type=bf16"}).model;
    EXPECT_EQ(bf16.tensor("blk.1.attn.core").type, DType::BF16);
    EXPECT_EQ(planned(factor_model(), "tensorllm", {}).model.tensor("blk.1.attn.core").type, DType::F32);
}

TEST(TensorLlm, RefusesWhatEarlierStepsLeft) {
    const Model model = factor_model();
    const auto after = [&](const char* method, const Settings& first, const Settings& second) {
        planned(planned(model, method, first).model, "tensorllm", second);
    };
    expect_error(ErrorCode::unsupported, {"layer", "attn.", "heads are shared", "put this step first"},
                 [&] { after("direct_share", {"ratio=0.34"}, {"ranks=9,4,3"}); });
    expect_error(ErrorCode::unsupported, {"layer 1 attn.q", "made factors"}, [&] {
        after("tensorllm", {"ranks=9,4,3", "layers=1"}, {"ranks=6,3,2"});
    });
    expect_error(ErrorCode::unsupported, {"layer 1 attn.v", "made factors"}, [&] {
        after("laser", {"rank=3", "slots=attn.v", "layers=1"}, {"ranks=6,3,2"});
    });
    after("laser", {"rank=3", "slots=ffn"}, {"ranks=6,3,2"});
    after("tensorllm", {"ranks=9,4,3", "layers=1"}, {"ranks=6,3,2", "layers=0,2"});
    after("tensorllm", {"ranks=9,4,3", "slots=attn.q"}, {"ranks=6,3,2", "slots=attn.k,attn.v"});
    Model lora = model;
    lora.tensors["u"] = float_tensor({1, 32}, std::vector<float>(32));
    lora.tensors["v"] = float_tensor({24, 1}, std::vector<float>(24));
    lora.topology.layers[0][Slot::attn_q] = Plus{Dense{"blk.0.attn_q.weight"}, LowRank{"u", "v"}};
    expect_error(ErrorCode::unsupported, {"layer 0 attn.q", "LoRA"},
                 [&] { planned(lora, "tensorllm", {"ranks=9,4,3"}); });
    // A tensor that another layer uses in part would be stored twice.
    Model partly = model;
    partly.topology.layers[2][Slot::attn_k] =
        Heads{{{"blk.0.attn_k.weight", 0, 1}, {"blk.2.attn_k.weight", 1, 1}}};
    expect_error(ErrorCode::unsupported, {"layer 0", "blk.0.attn_k.weight", "layer 2 attn.k"}, [&] {
        planned(partly, "tensorllm", {"ranks=9,4,3", "layers=0"});
    });
}

TEST(TensorLlm, Errors) {
    const Model model = factor_model();
    const auto usage = [&](const Settings& settings, const std::vector<std::string>& parts) {
        expect_error(ErrorCode::usage, parts, [&] { planned(model, "tensorllm", settings); });
    };
    usage({"ranks=0,4,4"}, {"0,4,4", "from 1 on"});
    usage({"ranks=9,4"}, {"9,4", "expected 3"});
    usage({"ranks=0:9,4,4;0-1:9,4,4"}, {"layer 0 is named twice"});
    usage({"ranks=0:9,4,4;9,4,4"}, {"LAYERS:R1,R2,R3"});
    usage({"ranks=0:9,4,4", "layers=1"}, {"none of layers 1"});
    usage({"ranks=7:9,4,4"}, {"layers 0 to 2"});
    usage({"layers=3"}, {"layers 0 to 2"});
    usage({"slots=ffn.up"}, {"ffn.up has no heads"});
    usage({"slots=attn.x"}, {"attn.x"});
    usage({"kv=none"}, {"kv", "repeat"});
    usage({"sweeps=0"}, {"sweeps"});
    for (const Slot slot : kQkvo) {
        const Model bad = model_with_nan(slot);
        expect_error(ErrorCode::input, {"'blk.1.attn_", "row 3, column 5", "nan"},
                     [&] { compressed(bad, "tensorllm", {"ranks=9,4,3"}); });
    }
}

}  // namespace
}  // namespace refold
