// Models on devices, by ggml's own operations, against refold's kernels. The device cpu-plain is everywhere;
// REFOLD_TEST_DEVICE names another one (scripts/test-device).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "core/code_of.h"
#include "core/error.h"
#include "engine/compare.h"
#include "engine/devices.h"
#include "engine/expression_models.h"
#include "engine/synthetic_models.h"
#include "engine/tested_device.h"
#include "model/load.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

double deviation(std::span<const float> values) {
    double sum = 0, squares = 0;
    for (const float v : values) {
        sum += v;
        squares += static_cast<double>(v) * v;
    }
    const auto n = static_cast<double>(values.size());
    return std::sqrt(std::max(0.0, squares / n - sum / n * (sum / n)));
}

// Logits of every token of a decoder in steps of `chunk` tokens, hidden states of an encoder.
std::vector<float> results(const Model& model, const reference::Input& input, EngineOptions options) {
    if (model.config.causal) return all_logits(model, input.tokens, options);
    options.context = static_cast<int64_t>(input.tokens.size());
    SingleSequence sequence(model, options);
    return sequence.encode({input.tokens, input.token_types, input.mask}).last_hidden_state;
}

// Of float32: numbers that are rounded to F16 on the way show. CUDA multiplies in TF32.
double tolerance() { return tested_device().starts_with("cuda") ? 2e-3 : 2e-4; }

void expect_same(const std::string& name, const Model& model, const reference::Input& input,
                 const EngineOptions& options) {
    SCOPED_TRACE(name);
    EngineOptions there = options;
    there.device = tested_device();
    const auto expected = results(model, input, options), got = results(model, input, there);
    ASSERT_EQ(got.size(), expected.size());
    ASSERT_GT(deviation(expected), 0);
    EXPECT_LE(largest_difference(got, expected) / deviation(expected), tolerance());
}

reference::Input random_input(const Model& model, size_t tokens = 37) {
    return {random_tokens(tokens, model.config.n_vocab, 3), {}, {}};
}

TEST(Device, EveryFamily) {
    for (const auto& entry : fs::directory_iterator(std::string(REFOLD_FIXTURES) + "/hf")) {
        const Model model = load_model(entry.path());
        for (const int64_t chunk : {1, 5, 512})
            expect_same(entry.path().filename(), model, random_input(model),
                        {.threads = 1, .chunk = chunk, .f32 = true});
    }
}

TEST(Device, EveryFeature) {
    for (const auto& [name, model, input] : synthetic_models())
        expect_same(name, model, input, {.threads = 1, .f32 = true});
}

TEST(Device, EveryWeightExpression) {
    uint32_t seed = 0;
    for (const auto& [name, build] : expressions::cases()) {
        ++seed;
        ExpressionBuilder builder(kExpressionFamilies[seed % kExpressionFamilies.size()], seed);
        if (!has_groups(builder.model.config.family) && name.find("groups") != std::string::npos) continue;
        build(builder);
        const Model model = builder.finish();
        expect_same(name, model, random_input(model), {.threads = 1, .chunk = 16, .f32 = true});
    }
}

// Inputs and keys are rounded, by each device in its own way. It is not further from float32 than the CPU is.
void expect_as_close(const std::string& name, const Model& model, const EngineOptions& options,
                     double times = 1.5) {
    EngineOptions exact = options, there = options;
    exact.f32 = true;
    there.device = tested_device();
    const auto input = random_input(model);
    const auto truth = results(model, input, exact);
    const auto distance = [&](const EngineOptions& of) {
        const auto got = results(model, input, of);
        double squares = 0;
        for (size_t i = 0; i < truth.size(); ++i)
            squares += std::pow(static_cast<double>(got.at(i)) - static_cast<double>(truth[i]), 2);
        return std::sqrt(squares / static_cast<double>(truth.size())) / deviation(truth);
    };
    EXPECT_LE(distance(there), times * distance(options) + 2e-3) << name;
}

// Weights as the files have them, and with every type of the cache.
TEST(Device, QuantizedWeightsAndCaches) {
    for (const char* file : {"f16", "q8_0", "q4_0", "q4_1"})
        expect_as_close(file, load_model(fmt::format("{}/quantized/{}.gguf", REFOLD_FIXTURES, file)),
                        {.threads = 1});
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/quantized/f16.gguf");
    for (const KvType type : {KvType::f32, KvType::q8_0, KvType::q4_0}) {
        if (model.config.head_dim % block_elements(element_type(type)) != 0) continue;
        expect_as_close(kv_type_name(type), model, {.threads = 1, .kv = type});
    }
}

// Dense, and with heads that layers share.
TEST(Device, EveryType) {
    const ExpressionShape shape{
        .layers = 2, .heads = 8, .kv_heads = 4, .head_dim = 32, .embd = 256, .ff = 512};
    ExpressionBuilder plain("llama", 1, shape), sharing("llama", 1, shape);
    for (size_t p = 1; p < sharing.n_layer(); ++p)
        for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o})
            sharing.at(p, slot) = sharing.heads(p, slot);
    const Model dense = plain.finish(), shared = sharing.finish();
    for (const DType type : {DType::F16, DType::BF16, DType::Q8_0, DType::Q5_1, DType::Q5_0, DType::Q4_1,
                             DType::Q4_0, DType::IQ4_NL, DType::MXFP4, DType::Q6_K, DType::Q5_K, DType::Q4_K,
                             DType::Q3_K, DType::Q2_K, DType::IQ4_XS, DType::IQ3_S}) {
        const double times = type == DType::BF16 ? 16 : 2;  // ggml rounds inputs for BF16 on a CPU
        expect_as_close(name(type), with_type(dense, type), {.threads = 1}, times);
        expect_as_close(name(type) + ", shared heads", with_type(shared, type), {.threads = 1}, times);
    }
}

// Pieces of several sequences in one step, and rows of the cache that are copied.
TEST(Device, SeveralSequences) {
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf");
    const EngineOptions alone{.threads = 1, .context = 64, .f32 = true};
    EngineOptions together = alone;
    together.sequences = 0;
    together.kv_tokens = 104;
    together.device = tested_device();
    const auto engine = make_engine(model, together);
    const auto n_vocab = static_cast<size_t>(model.config.n_vocab);
    const auto text = random_tokens(40, model.config.n_vocab, 1),
               other = random_tokens(40, model.config.n_vocab, 2);
    const auto expected = all_logits(model, text, alone), expected_other = all_logits(model, other, alone);
    const auto run =
        [&](std::vector<std::tuple<int32_t, const std::vector<int32_t>*, size_t, size_t>> parts) {
            std::vector<Row> rows;
            for (const auto& [id, tokens, first, last] : parts) {
                for (size_t t = first; t < last; ++t)
                    rows.push_back({.sequence = id,
                                    .position = static_cast<int64_t>(t),
                                    .token = (*tokens)[t],
                                    .logits = t + 1 == last});
            }
            const auto logits = engine->step({.rows = rows}).logits;
            for (size_t i = 0; i < parts.size(); ++i) {
                const auto& all = std::get<1>(parts[i]) == &text ? expected : expected_other;
                const auto wanted = std::span(all).subspan((std::get<3>(parts[i]) - 1) * n_vocab, n_vocab);
                EXPECT_LE(largest_difference(logits.subspan(i * n_vocab, n_vocab), wanted),
                          tolerance() * deviation(wanted))
                    << i;
            }
        };
    const int32_t a = engine->open(40).value(), b = engine->open(40).value();
    run({{a, &text, 0, 9}, {b, &other, 0, 20}});
    run({{a, &text, 9, 10}, {b, &other, 20, 21}});
    run({{b, &other, 21, 40}, {a, &text, 10, 11}});
    engine->close(b);
    const int32_t c = engine->open(40).value();
    engine->copy(a, c, 11);
    run({{c, &text, 11, 40}, {a, &text, 11, 12}});
    engine->truncate(c, 5);
    run({{c, &text, 5, 30}});
    // Only in several holes there is room for the next one: the cache moves what it has.
    EXPECT_TRUE(engine->open(24).has_value());
    EXPECT_FALSE(engine->resize(c, 41));
    EXPECT_TRUE(engine->resize(c, 35));
    engine->close(a);
    const int32_t d = engine->open(45).value();
    run({{c, &text, 30, 35}, {d, &other, 0, 40}});
}

// Layers on two devices of the same kind, in either order, and on the CPU between them.
TEST(Device, SeveralDevices) {
    const std::string first = tested_device();
    std::string other;
    for (const Device& device : list_devices()) {
        const auto kind = [](const std::string& name) {
            return name.substr(0, name.find_last_not_of("0123456789") + 1);
        };
        if (device.name != first && kind(device.name) == kind(first)) other = device.name;
    }
    if (other.empty()) GTEST_SKIP() << "one device only";
    for (const std::string& devices : {first + "," + other, other + "," + first, first + ",cpu," + other}) {
        for (const auto& [name, model, input] : synthetic_models()) {
            const EngineOptions options{.threads = 1, .f32 = true};
            EngineOptions there = options;
            there.device = devices;
            const auto expected = results(model, input, options);
            EXPECT_LE(largest_difference(results(model, input, there), expected),
                      tolerance() * deviation(expected))
                << name << " on " << devices;
        }
    }
}

TEST(Device, WhatItIsAskedFor) {
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/llama/model.gguf");
    const auto make = [&](const EngineOptions& options) { return make_engine(model, options); };
    try {
        make({.device = "gpu7"});
        ADD_FAILURE() << "a device that is not there";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::usage);
        EXPECT_THAT(error.what(), testing::HasSubstr("there are auto, cpu"));
    }
    EXPECT_EQ(code_of([&] { make({.device = "cpu-plain,cpu"}); }, "is there twice"), ErrorCode::usage);
    EXPECT_EQ(code_of([&] { make({.gpu_layers = 1}); }, "--gpu-layers needs a --device"), ErrorCode::usage);
    EXPECT_EQ(list_devices().front().name, kCpu);
}

}  // namespace
}  // namespace refold
