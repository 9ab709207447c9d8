#include "eval/stock.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/temp_folder.h"
#include "io/safetensors.h"

#ifndef REFOLD_FIXTURES
#define REFOLD_FIXTURES "tests/fixtures"
#endif

namespace refold {
namespace {

std::string fixture(const std::string& name) { return REFOLD_FIXTURES "/" + name; }

float largest_difference(std::span<const float> a, std::span<const float> b) {
    EXPECT_EQ(a.size(), b.size());
    float largest = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
        largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
}

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
    const auto& view = file.tensors.at(name);
    std::vector<T> out(view.data.size() / sizeof(T));
    memcpy(out.data(), view.data.data(), out.size() * sizeof(T));
    return out;
}

std::vector<int32_t> golden_row(const SafetensorsFile& file, int row) {
    const auto ids = values<int64_t>(file, "input_ids." + std::to_string(row));
    return {ids.begin(), ids.end()};
}

class StockGolden : public testing::TestWithParam<const char*> {};

TEST_P(StockGolden, LogitsEqualThoseOfTransformers) {
    const std::string name = GetParam();
    const auto golden = read_safetensors(fixture(name + "/golden.safetensors"));
    StockLlama stock(fixture(name + "/model.gguf"),
                     {.threads = 1, .context = 256, .kv = KvType::f32, .flash_attention = false});
    for (int row = 0; row < 5; ++row) {
        const auto tokens = golden_row(golden, row);
        stock.clear();
        const auto logits = stock.evaluate_all(tokens);
        ASSERT_EQ(logits.size(), tokens.size() * static_cast<size_t>(stock.n_vocab()));
        EXPECT_LT(largest_difference(logits, values<float>(golden, "logits." + std::to_string(row))), 1e-4F)
            << row;
    }
}
INSTANTIATE_TEST_SUITE_P(Fixtures, StockGolden, testing::Values("llama", "llama_gqa"));

class Stock : public testing::Test {
protected:
    SafetensorsFile golden = read_safetensors(fixture("llama/golden.safetensors"));
    std::vector<int32_t> tokens = golden_row(golden, 0);
    StockOptions options{.threads = 1, .context = 256, .kv = KvType::f32, .flash_attention = false};
    std::string path = fixture("llama/model.gguf");
};

TEST_F(Stock, EvaluateIsTheLastRow) {
    StockLlama stock(path, options);
    const auto all = stock.evaluate_all(tokens);
    stock.clear();
    const auto last = stock.evaluate(tokens);
    ASSERT_EQ(last.size(), static_cast<size_t>(stock.n_vocab()));
    EXPECT_LT(largest_difference(last, std::span(all).last(last.size())), 1e-4F);
}

TEST_F(Stock, ChunksAndSingleTokensGiveTheSame) {
    StockLlama whole(path, options);
    const auto expected = whole.evaluate_all(tokens);
    const auto row = std::span(expected).last(static_cast<size_t>(whole.n_vocab()));

    options.chunk = 7;
    StockLlama chunked(path, options);
    EXPECT_LT(largest_difference(chunked.evaluate_all(tokens), expected), 1e-4F);
    chunked.clear();
    EXPECT_LT(largest_difference(chunked.evaluate(tokens), row), 1e-4F);
    chunked.clear();
    std::span<const float> last;
    for (const int32_t& token : tokens) {
        last = chunked.evaluate({&token, 1});
        chunked.pause();
    }
    chunked.resume();
    EXPECT_LT(largest_difference(last, row), 1e-4F);
}

TEST_F(Stock, DefaultsAreClose) {
    StockLlama stock(path, {.threads = 1, .context = 256});
    EXPECT_LT(largest_difference(stock.evaluate_all(tokens), values<float>(golden, "logits.0")), 5e-2F);
}

TEST_F(Stock, WhatCannotBeDoneThrows) {
    const auto code = [](const auto& action) {
        try {
            action();
        } catch (const Error& error) {
            return error.code();
        }
        return ErrorCode::internal;
    };
    const TempFolder folder;
    write_all(folder / "text.gguf", "this is not a model");
    testing::internal::CaptureStderr();
    EXPECT_EQ(code([&] { StockLlama(folder / "text.gguf", options); }), ErrorCode::unsupported);
    EXPECT_EQ(code([&] { StockLlama(folder / "missing.gguf", options); }), ErrorCode::unsupported);
    EXPECT_EQ(code([&] { StockLlama(path, {.threads = -1}); }), ErrorCode::usage);
    EXPECT_EQ(code([&] { StockLlama(path, {.context = 0}); }), ErrorCode::usage);
    EXPECT_EQ(code([&] { StockLlama(path, {.chunk = 0}); }), ErrorCode::usage);

    EXPECT_EQ(code([&] { StockLlama(path, {.device = "gpu7"}); }), ErrorCode::usage);
    EXPECT_NO_THROW(StockLlama(path, {.threads = 1, .context = 100, .device = "cpu-plain"}));

    options.context = 100;
    StockLlama stock(path, options);
    const std::vector<int32_t> bad{1, 544}, negative{-1};
    EXPECT_EQ(code([&] { stock.evaluate(bad); }), ErrorCode::input);
    EXPECT_EQ(code([&] { stock.evaluate(negative); }), ErrorCode::input);
    EXPECT_EQ(code([&] { stock.evaluate({}); }), ErrorCode::usage);
    stock.evaluate(tokens);
    EXPECT_EQ(code([&] { stock.evaluate(tokens); }), ErrorCode::input);
    stock.clear();
    stock.evaluate(tokens);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace refold
