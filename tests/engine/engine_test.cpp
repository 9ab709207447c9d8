// The engine against logits that Hugging Face transformers computed, and against itself in other step sizes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/compare.h"
#include "engine/single_sequence.h"
#include "eval/stock.h"
#include "io/safetensors.h"
#include "model/load.h"

namespace refold {
namespace {

const std::string kFixtures = REFOLD_FIXTURES;

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
    const auto& tensor = file.tensors.at(name);
    std::vector<T> out(tensor.data.size() / sizeof(T));
    memcpy(out.data(), tensor.data.data(), tensor.data.size());
    return out;
}

struct Golden {
    explicit Golden(const std::string& name)
        : folder(kFixtures + "/" + name),
          model(load_model(folder + "/model.gguf")),
          file(read_safetensors(folder + "/golden.safetensors")) {}
    std::vector<int32_t> row(int i) const {
        const auto ids = values<int64_t>(file, fmt::format("input_ids.{}", i));
        return {ids.begin(), ids.end()};
    }
    std::vector<float> logits(int i) const { return values<float>(file, fmt::format("logits.{}", i)); }

    std::string folder;
    Model model;
    SafetensorsFile file;
};

class GoldenTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Llama, GoldenTest, testing::Values("llama", "llama_gqa", "llama_bf16_sharded"));

TEST_P(GoldenTest, LogitsOfEveryToken) {
    const Golden golden(GetParam());
    for (int i = 0; i < 5; ++i) {
        EXPECT_LE(largest_difference(all_logits(golden.model, golden.row(i), {.threads = 2, .f32 = true}),
                                     golden.logits(i)),
                  1e-4)
            << "row " << i;
    }
}

TEST_P(GoldenTest, StepsOfAnySizeGiveTheSame) {
    const Golden golden(GetParam());
    const auto expected = golden.logits(0);
    for (const int64_t chunk : {1, 7, 33, 512}) {
        EXPECT_LE(largest_difference(
                      all_logits(golden.model, golden.row(0), {.threads = 1, .chunk = chunk, .f32 = true}),
                      expected),
                  1e-4)
            << chunk;
    }
}

TEST_P(GoldenTest, GreedyContinuation) {
    const Golden golden(GetParam());
    std::ifstream json(golden.folder + "/golden.json");
    const auto greedy = nlohmann::json::parse(json)["greedy"];
    const auto expected = values<float>(golden.file, "greedy.logits");
    SingleSequence sequence(golden.model, {.threads = 1, .context = 64, .f32 = true});
    const auto n_vocab = static_cast<size_t>(sequence.capabilities().n_vocab);
    auto logits = sequence.evaluate(golden.row(2));
    for (size_t step = 0; step < 16; ++step) {
        EXPECT_LE(largest_difference(logits, std::span(expected).subspan(step * n_vocab, n_vocab)), 1e-4)
            << "step " << step;
        const auto token = static_cast<int32_t>(argmax(logits));
        logits = sequence.evaluate({&token, 1});
    }
}

TEST_P(GoldenTest, F16CacheIsClose) {
    const Golden golden(GetParam());
    EXPECT_LE(largest_difference(all_logits(golden.model, golden.row(0), {.threads = 1}), golden.logits(0)),
              0.3);
}

// Quantized files run by the same kernels as stock llama.cpp.
class QuantizedTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Types, QuantizedTest, testing::Values("f16", "q8_0", "q4_0", "q4_1"));

TEST_P(QuantizedTest, AgreesWithStockLlama) {
    const std::string path = fmt::format("{}/quantized/{}.gguf", kFixtures, GetParam());
    const Model model = load_model(path);
    const auto tokens = random_tokens(64, model.config.n_vocab, 1);
    const auto ours = all_logits(model, tokens, {.threads = 1});
    StockLlama stock(path, {.threads = 1, .context = 256});
    const auto theirs = stock.evaluate_all(tokens);
    const auto n_vocab = static_cast<size_t>(model.config.n_vocab);
    const auto distance = [](std::span<const float> a, std::span<const float> b) {
        double squares = 0, difference = 0;
        for (size_t i = 0; i < a.size(); ++i) {
            squares += std::pow(static_cast<double>(b[i]), 2);
            difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
        }
        return std::sqrt(difference / squares);
    };
    if (model.tensor("blk.0.attn_q.weight").type == DType::Q4_1) {
        // Their sums of inputs, which minimums are multiplied by, have the precision of F16; ours are exact.
        const auto exact = all_logits(model, tokens, {.threads = 1, .f32 = true});
        EXPECT_LE(distance(ours, exact), 1.1 * distance(theirs, exact));
        EXPECT_LE(distance(ours, theirs), 0.05);
        return;
    }
    size_t equal = 0;
    for (size_t t = 0; t < tokens.size(); ++t) {
        equal += argmax(std::span(ours).subspan(t * n_vocab, n_vocab)) ==
                         argmax(std::span(theirs).subspan(t * n_vocab, n_vocab))
                     ? 1
                     : 0;
    }
    EXPECT_GE(equal, 64u * 99 / 100);
    // Attention is another operation than theirs, and quantized activations round its last digits to steps.
    EXPECT_LE(distance(ours, theirs), 0.02);
}

// Logits of the last rows only are those that all rows have; the rows before are computed all the same.
TEST(Engine, LogitsFromARowOn) {
    const Golden golden("llama_gqa");
    const auto row = golden.row(0);
    const auto n_vocab = golden.model.config.n_vocab;
    const auto expected = all_logits(golden.model, row, {.threads = 1, .f32 = true});
    for (const int64_t chunk : {7, 512}) {
        for (const size_t from : {size_t{0}, size_t{6}, size_t{7}, row.size() - 1, row.size() + 3}) {
            SingleSequence sequence(golden.model,
                                    {.threads = 1, .context = 128, .chunk = chunk, .f32 = true});
            size_t next = from;
            std::vector<float> logits;
            sequence.evaluate_all(
                row,
                [&](size_t first, std::span<const float> rows) {
                    EXPECT_EQ(first, next);
                    next += rows.size() / static_cast<size_t>(n_vocab);
                    logits.insert(logits.end(), rows.begin(), rows.end());
                },
                from);
            EXPECT_EQ(sequence.length(), static_cast<int64_t>(row.size()));
            const size_t begin = std::min(from, row.size()) * static_cast<size_t>(n_vocab);
            ASSERT_EQ(logits.size(), expected.size() - begin) << chunk << " " << from;
            EXPECT_LE(largest_difference(logits, std::span(expected).subspan(begin)), 1e-5)
                << chunk << " " << from;
        }
    }
}

TEST(Engine, TruncateForgets) {
    const Golden golden("llama_gqa");
    const auto row = golden.row(0);
    SingleSequence sequence(golden.model, {.threads = 1, .context = 128, .f32 = true});
    sequence.evaluate(std::span(row).first(40));
    sequence.truncate(20);
    sequence.evaluate(std::span(row).subspan(20, 30));
    EXPECT_EQ(sequence.length(), 50);
    const auto n_vocab = static_cast<size_t>(sequence.capabilities().n_vocab);
    const auto expected = golden.logits(0);
    const auto last = sequence.evaluate(std::span(row).subspan(50, 1));
    EXPECT_LE(largest_difference(last, std::span(expected).subspan(50 * n_vocab, n_vocab)), 1e-4);
}

TEST(Engine, ContextsBeyondOneCacheStep) {
    const Golden golden("llama_gqa");
    const auto tokens = random_tokens(600, golden.model.config.n_vocab, 2);
    const auto whole = all_logits(golden.model, tokens, {.threads = 1, .f32 = true});
    SingleSequence sequence(golden.model, {.threads = 1, .context = 600, .f32 = true});
    const auto n_vocab = static_cast<size_t>(sequence.capabilities().n_vocab);
    for (size_t t = 0; t < tokens.size(); ++t) {
        const auto row = sequence.evaluate({&tokens[t], 1});
        ASSERT_LE(largest_difference(row, std::span(whole).subspan(t * n_vocab, n_vocab)), 1e-4) << t;
    }
}

TEST(Engine, ResidentBytesAreTheAccountedOnes) {
    for (const char* name : {"llama/model", "llama_gqa/model", "quantized/q4_0", "quantized/q8_0"}) {
        const Model model = load_model(kFixtures + "/" + name + ".gguf");
        uint64_t bytes = 0;
        for (const auto& [tensor_name, tensor] : model.tensors) bytes += tensor.bytes();
        EXPECT_EQ(SingleSequence(model, {.threads = 1, .context = 256}).memory().weight_bytes, bytes) << name;
    }
}

TEST(Engine, BadInputIsRefused) {
    const Golden golden("llama");
    SingleSequence sequence(golden.model, {.threads = 1, .context = 16});
    const auto code_of = [&](std::vector<int32_t> tokens) {
        try {
            sequence.evaluate(tokens);
        } catch (const Error& error) {
            return error.code();
        }
        return ErrorCode::internal;
    };
    EXPECT_EQ(code_of({-1}), ErrorCode::input);
    EXPECT_EQ(code_of({544}), ErrorCode::input);
    EXPECT_EQ(code_of({}), ErrorCode::usage);
    EXPECT_EQ(code_of(std::vector<int32_t>(17, 1)), ErrorCode::input);
    EXPECT_EQ(sequence.length(), 0);
    EXPECT_THROW(SingleSequence(golden.model, {.threads = -1}), Error);
    EXPECT_THROW(SingleSequence(golden.model, {.chunk = 0}), Error);
    EXPECT_THROW(sequence.truncate(1), Error);
}

}  // namespace
}  // namespace refold
