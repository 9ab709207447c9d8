// Mixtures of experts in the ggml engine: weights in every layout, experts of several tensors, factors.
#include <gtest/gtest.h>

#include "engine/compare.h"
#include "engine/ggml/panel_kernels.h"
#include "engine/synthetic_models.h"
#include "model/materialize.h"

namespace refold {
namespace {

constexpr Slot kExperts[] = {Slot::ffn_gate_exps, Slot::ffn_up_exps, Slot::ffn_down_exps};
const std::vector<int32_t> kTokens = {3, 16, 0, 7, 40, 12, 1, 9, 5, 22, 31, 8, 44, 17, 2, 6, 19, 33, 47, 11};

// A single layer, whose router reads the same whatever type the experts have.
Model mixture() {
    SyntheticShape shape = synthetic::mixture_with_sinks();
    ModelConfig& c = shape.config;
    c.n_embd = 64;
    c.head_dim = 16;
    c.rope.dims = 16;
    c.n_vocab = 50;
    c.n_expert = 6;
    c.n_ff_expert = 32;
    c.windows.clear();
    shape.layers = 1;
    Model model = synthetic_model(shape);
    for (const Slot slot : kExperts) {
        Tensor& tensor = model.tensors.at(std::get<Dense>(model.topology.at(0, slot)).tensor);
        tensor.shape = tensor_shape(slot, c, 0);
    }
    return model;
}

void set_type(Model& model, Slot slot, DType type) {
    Tensor& tensor = model.tensors.at(std::get<Dense>(model.topology.at(0, slot)).tensor);
    const auto values = materialize(model, model.topology.at(0, slot), slot, 0);
    tensor.type = type;
    tensor.mapped = {};
    tensor.produce = [bytes = quantize(type, values, tensor.row_elements())] { return bytes; };
}

float largest(std::span<const float> x) {
    float out = 0;
    for (const float value : x) out = std::max(out, std::abs(value));
    return out;
}

class ExpertTypes : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, ExpertTypes,
                         testing::Values(DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0,
                                         DType::Q4_1, DType::Q5_0, DType::IQ4_NL, DType::MXFP4),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST_P(ExpertTypes, ProductsAreThoseOfTheValues) {
    Model model = mixture();
    for (const Slot slot : kExperts) set_type(model, slot, GetParam());
    const auto exact = all_logits(model, kTokens, {.threads = 1, .f32 = true});
    const auto own = all_logits(model, kTokens, {.threads = 2, .kv = KvType::f32});
    // Inputs are rounded to the type's own kind of number; those of F16 weights are not, nor those of BF16
    // where the CPU has no products of its pairs.
    const bool floats = GetParam() == DType::F32 || GetParam() == DType::F16 ||
                        (GetParam() == DType::BF16 && !kernels::has_bf16_pairs());
    EXPECT_LE(largest_difference(own, exact), (floats ? 1e-5 : 2e-2) * largest(exact));
    if (!floats) {
        EXPECT_GT(largest_difference(own, exact), 0);
    }
}

TEST_P(ExpertTypes, TokensDoNotDependOnEachOtherNorOnThreads) {
    Model model = mixture();
    for (const Slot slot : kExperts) set_type(model, slot, GetParam());
    const auto all = all_logits(model, kTokens, {.threads = 1, .kv = KvType::f32});
    const double tolerance = 1e-4;
    for (const int threads : {1, 3}) {
        for (const int64_t chunk : {1, 7}) {
            EngineOptions options{.threads = threads, .kv = KvType::f32};
            options.chunk = chunk;
            EXPECT_LE(largest_difference(all_logits(model, kTokens, options), all), tolerance * largest(all))
                << threads << ' ' << chunk;
        }
    }
}

// Experts one by one in other types, from several tensors, some of them twice.
TEST(Experts, ComeFromSeveralTensors) {
    const Model whole = mixture();
    Model parts = whole, copies = whole;
    for (const Slot slot : kExperts) {
        const auto values = materialize(whole, whole.topology.at(0, slot), slot, 0);
        const SlotShape shape = slot_shape(slot, whole.config, 0);
        const int64_t rows = block_size(slot, whole.config);
        const auto size = static_cast<size_t>(rows * shape.in);
        const auto piece = [&](size_t expert, DType type) {
            Tensor tensor{type, {shape.in, rows}, {}, {}};
            tensor.produce = [bytes = quantize(type, std::span(values).subspan(expert * size, size),
                                               shape.in)] { return bytes; };
            return tensor;
        };
        const std::string name = slot_name(slot), source = std::get<Dense>(whole.topology.at(0, slot)).tensor;
        parts.tensors[name + ".a"] = piece(4, DType::Q8_0);
        parts.tensors[name + ".b"] = piece(5, DType::F32);
        parts.topology.layers[0][slot] =
            Heads{{{source, 1, 2}, {name + ".a", 0, 1}, {source, 1, 1}, {name + ".b", 0, 1}, {source, 0, 1}}};
        std::vector<float> expected;
        for (const size_t expert : {1, 2, 4, 1, 5, 0}) {
            Model one;
            one.tensors["x"] = piece(expert, expert == 4 ? DType::Q8_0 : DType::F32);
            const auto part = floats_of(one, "x");
            expected.insert(expected.end(), part.begin(), part.end());
        }
        EXPECT_EQ(materialize(parts, parts.topology.at(0, slot), slot, 0), expected);
        copies.tensors.at(source).produce = [bytes = quantize(DType::F32, expected, shape.in)] {
            return bytes;
        };
    }
    const auto wanted = all_logits(copies, kTokens, {.threads = 1, .f32 = true});
    for (const EngineKind kind : {EngineKind::ggml, EngineKind::torch}) {
        if (kind == EngineKind::torch && !has_torch_engine()) continue;
        EXPECT_LE(
            largest_difference(all_logits(parts, kTokens, {.kind = kind, .threads = 2, .f32 = true}), wanted),
            1e-4);
    }
}

TEST(Experts, FactorsAreMultipliedOut) {
    Model model = mixture();
    const Slot slot = Slot::ffn_up_exps;
    const SlotShape shape = slot_shape(slot, model.config, 0);
    RandomWeights random(9);
    model.tensors["u"] = random.tensor({8, shape.out}, 0, 0.7F);
    model.tensors["v"] = random.tensor({shape.in, 8}, 0, 0.7F);
    model.topology.layers[0][slot] = LowRank{"u", "v"};
    Model dense = model;
    dense.tensors["w"] = {DType::F32, tensor_shape(slot, model.config, 0), {}, {}};
    dense.tensors["w"].produce =
        [bytes = quantize(DType::F32, materialize(model, model.topology.at(0, slot), slot, 0), shape.in)] {
            return bytes;
        };
    dense.topology.layers[0][slot] = Dense{"w"};
    const auto wanted = all_logits(dense, kTokens, {.threads = 1, .f32 = true});
    for (const FactoredExecution factored : {FactoredExecution::automatic, FactoredExecution::factored}) {
        EngineOptions options{.threads = 2, .f32 = true};
        options.factored = factored;
        EXPECT_LE(largest_difference(all_logits(model, kTokens, options), wanted), 1e-4);
    }
}

}  // namespace
}  // namespace refold
