#include "text/tokenizer.h"

#include <gguf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "core/code_of.h"
#include "core/error.h"
#include "core/temp_folder.h"

#ifndef REFOLD_FIXTURES
#define REFOLD_FIXTURES "tests/fixtures"
#endif

namespace refold {
namespace {

std::string model_path(const std::string& name) { return REFOLD_FIXTURES "/" + name + "/model.gguf"; }

struct Golden {
    std::string name;
    std::set<std::string> not_round_trip;  // texts changed by decode(encode(text))
};
void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }

class TokenizerGolden : public testing::TestWithParam<Golden> {
protected:
    TokenizerGolden()
        : tokenizer(model_path(GetParam().name)),
          golden(nlohmann::json::parse(
              std::ifstream(REFOLD_FIXTURES "/" + GetParam().name + "/tokenizer_golden.json"))) {}

    Tokenizer tokenizer;
    nlohmann::json golden;
};

TEST_P(TokenizerGolden, IdsEqualThoseOfTransformers) {
    ASSERT_GT(golden["encodings"].size(), 50U);
    EXPECT_EQ(tokenizer.size(), golden["vocab_size"].get<int32_t>());
    for (const auto& e : golden["encodings"]) {
        const std::string text = e["text"];
        // transformers always parses special tokens.
        EXPECT_EQ(tokenizer.encode(text, false, true), e["ids"].get<std::vector<int32_t>>()) << text;
        EXPECT_EQ(tokenizer.encode(text, true, true), e["ids_with_special"].get<std::vector<int32_t>>())
            << text;
    }
}

TEST_P(TokenizerGolden, TextsEqualThoseOfTransformers) {
    for (const auto& e : golden["encodings"]) {
        const std::vector<int32_t> ids = e["ids"], with_special = e["ids_with_special"];
        EXPECT_EQ(tokenizer.decode(ids, true), e["decoded"].get<std::string>());
        EXPECT_EQ(tokenizer.decode(ids, false), e["decoded_skip_special"].get<std::string>());
        EXPECT_EQ(tokenizer.decode(with_special, false), e["decoded_skip_special"].get<std::string>());
    }
}

TEST_P(TokenizerGolden, RoundTripIsExact) {
    std::set<std::string> changed;
    for (const auto& e : golden["encodings"]) {
        const std::string text = e["text"];
        if (tokenizer.decode(tokenizer.encode(text, false, true), true) != text) changed.insert(text);
    }
    EXPECT_EQ(changed, GetParam().not_round_trip);
}

TEST_P(TokenizerGolden, SpecialTokensAreTextUnlessParsed) {
    const std::string bos = tokenizer.piece(*tokenizer.bos(), true);
    EXPECT_FALSE(bos.empty());
    EXPECT_EQ(tokenizer.piece(*tokenizer.bos(), false), "");
    const auto parsed = tokenizer.encode(bos, false, true), unparsed = tokenizer.encode(bos, false, false);
    EXPECT_EQ(parsed, std::vector<int32_t>{*tokenizer.bos()});
    EXPECT_GT(unparsed.size(), 1U);
    EXPECT_EQ(std::ranges::count(unparsed, *tokenizer.bos()), 0);
    EXPECT_EQ(tokenizer.decode(unparsed, false), bos);
    EXPECT_TRUE(tokenizer.adds_bos());
    EXPECT_TRUE(tokenizer.is_end_of_generation(*tokenizer.eos()));
    EXPECT_FALSE(tokenizer.is_end_of_generation(tokenizer.encode("a", false, false).back()));
}

TEST_P(TokenizerGolden, PiecesJoinToTheText) {
    const std::string text = "The quick 日本語 😀 fox";
    std::string joined;
    for (const int32_t token : tokenizer.encode(text, false, false)) joined += tokenizer.piece(token, false);
    if (joined.front() == ' ') joined.erase(0, 1);  // SentencePiece's own
    EXPECT_EQ(joined, text);
}

TEST_P(TokenizerGolden, LongTextsAreFast) {
    std::string text;
    while (text.size() < 1'300'000)
        text += "The program is free software: you can redistribute it\nÅ 日本 42. ";
    const auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer.encode(text, true, false);
    EXPECT_EQ(tokenizer.decode(ids, false), text);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST_P(TokenizerGolden, InvalidBytesDoNotEndTheProcess) {
    const std::string text = "ok \xff\xfe\xc3 end\xe2\x82";
    EXPECT_FALSE(tokenizer.encode(text, false, true).empty());
}

TEST_P(TokenizerGolden, IdsOutOfRangeThrow) {
    for (const int32_t bad : {-1, tokenizer.size(), 1 << 30}) {
        EXPECT_EQ(code_of(
                      [&] {
                          (void)tokenizer.decode(std::vector{1, bad}, true);
                      },
                      "not in the vocabulary"),
                  ErrorCode::input);
        EXPECT_EQ(code_of([&] { (void)tokenizer.piece(bad, true); }, "not in the vocabulary"),
                  ErrorCode::input);
    }
}

// The metadata is enough: libllama need not accept the tensors of a compressed model.
TEST_P(TokenizerGolden, LoadsFromAFileWithoutTensors) {
    const TempFolder folder;
    const std::string path = folder / "meta.gguf";
    gguf_context* source = gguf_init_from_file(model_path(GetParam().name).c_str(), {true, nullptr});
    ASSERT_NE(source, nullptr);
    gguf_context* copy = gguf_init_empty();
    gguf_set_kv(copy, source);
    gguf_set_val_str(copy, "refold.topology", "{}");
    EXPECT_TRUE(gguf_write_to_file(copy, path.c_str(), true));
    gguf_free(copy);
    gguf_free(source);

    const std::string text = "Hello, world!";
    EXPECT_EQ(Tokenizer(path).encode(text, true, true), tokenizer.encode(text, true, true));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TokenizerGolden,
                         testing::Values(
                             // SentencePiece: a special token swallows the space after it, and "▁" stands for
                             // a space.
                             Golden{"llama", {"<s> </s> <unk> <pad> <mask>", "▁ ▁▁ literal▁metaspace"}},
                             Golden{"llama_gqa", {}}),
                         [](const auto& param) { return param.param.name; });

TEST(Tokenizer, ChatTemplateOpensTheAssistantsTurn) {
    const Tokenizer tokenizer(model_path("llama_gqa"));
    ASSERT_TRUE(tokenizer.has_chat_template());
    const std::vector<ChatMessage> messages{
        {"system", "Be brief."}, {"user", " Hi?\n"}, {"assistant", ""}, {"user", std::string(100'000, 'x')}};
    EXPECT_EQ(tokenizer.apply_chat_template(messages),
              "<|im_start|>system\nBe brief.<|im_end|>\n"
              "<|im_start|>user\n Hi?\n<|im_end|>\n"
              "<|im_start|>assistant\n<|im_end|>\n"
              "<|im_start|>user\n" +
                  messages[3].content + "<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(tokenizer.apply_chat_template({}), "<|im_start|>assistant\n");
    const std::vector<ChatMessage> zero{{"user", std::string("a\0b", 3)}};
    EXPECT_EQ(code_of([&] { (void)tokenizer.apply_chat_template(zero); }, "zero byte"), ErrorCode::input);
}

TEST(Tokenizer, WithoutChatTemplateThrows) {
    const Tokenizer tokenizer(model_path("llama"));
    EXPECT_FALSE(tokenizer.has_chat_template());
    EXPECT_EQ(code_of([&] { (void)tokenizer.apply_chat_template({}); }, "no chat template"),
              ErrorCode::unsupported);
}

TEST(Tokenizer, WhatCannotBeLoadedThrowsAndPrintsNothing) {
    const TempFolder folder;
    write_all(folder / "text.gguf", "this is not a model");
    testing::internal::CaptureStderr();
    EXPECT_EQ(code_of([&] { Tokenizer(folder / "missing.gguf"); }, "cannot open"), ErrorCode::io);
    EXPECT_EQ(code_of([&] { Tokenizer(folder / "text.gguf"); }, "magic"), ErrorCode::input);
    EXPECT_EQ(code_of([&] { Tokenizer(model_path("llama_bf16_sharded")); }, "no tokenizer"),
              ErrorCode::unsupported);
    (void)Tokenizer(model_path("llama")).encode("<s> twice", true, true);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace refold
