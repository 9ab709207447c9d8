// Marks and parts of prompts that are special tokens of the vocabulary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "generation/continuation.h"
#include "grammar/grammar.h"
#include "io/gguf.h"
#include "serve/chat_prompt.h"
#include "serve/conversation/answer_structure.h"
#include "serve/fill_in_middle.h"
#include "vocab/gguf_arrays.h"
#include "vocab/vocabulary.h"

namespace refold {
namespace {

// The tests' tokenizer, whose last tokens are these special ones.
std::unique_ptr<Tokenizer> with_special(const std::vector<std::string>& texts) {
    GgufMetadata metadata = GgufFile::open(REFOLD_FIXTURES "/llama_gqa/model.gguf")->metadata();
    std::vector<std::string> tokens = strings_of(metadata, "tokenizer.ggml.tokens");
    std::vector<int32_t> types = ints_of(metadata, "tokenizer.ggml.token_type");
    for (size_t i = 0; i < texts.size(); ++i) {
        tokens[tokens.size() - texts.size() + i] = texts[i];
        types[types.size() - texts.size() + i] = kControlToken;
    }
    metadata.set("tokenizer.ggml.tokens", string_array(tokens));
    metadata.set("tokenizer.ggml.token_type", int_array(types));
    return std::make_unique<Tokenizer>(metadata, "special");
}

TEST(SpecialMarks, ArePartOfTheTextAndOfGrammars) {
    const auto tokenizer = with_special({"<think>", "</think>"});
    const ChatPrompt prompt(*tokenizer, "{% for m in messages %}{{ m.content }}{% endfor %}{# </think> #}");
    const int32_t begin = tokenizer->size() - 2, end = tokenizer->size() - 1;
    ASSERT_EQ(prompt.marks(), (std::vector{begin, end}));
    GenerationRequest request;
    request.shown = prompt.marks();
    Continuation shown(*tokenizer, request), hidden(*tokenizer, GenerationRequest());
    for (const int32_t token : {begin, tokenizer->encode("a", false, false)[0], end}) {
        shown.add({}, token, 1);
        hidden.add({}, token, 1);
    }
    shown.finish(FinishReason::stop);
    hidden.finish(FinishReason::stop);
    EXPECT_EQ(shown.take()->text, "<think>a</think>");
    EXPECT_EQ(hidden.take()->text, "a");

    const AnswerParts parts{.marks = prompt.form().reasoning, .reasoning = AnswerParts::Reasoning::begun};
    AnswerStructure structure =
        answer_structure(parts, {}, {}, {.kind = OutputFormat::Kind::choice, .choices = {"yes"}});
    GrammarCompiler compiler(*tokenizer, tokenizer->size());
    EXPECT_FALSE(GrammarState(compiler.compile_structure(structure)).allows(end));
    structure.marks = prompt.marks();
    GrammarState state(compiler.compile_structure(structure));
    ASSERT_TRUE(state.allows(end));
    state.accept(end);
    EXPECT_TRUE(state.allows(tokenizer->encode("y", false, false)[0]));
    EXPECT_FALSE(state.allows(tokenizer->encode("a", false, false)[0]));
}

TEST(FillInMiddle, PromptsHaveTheirPartsInOrder) {
    const auto tokenizer = with_special({"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"});
    const auto tokens = fill_tokens(*tokenizer);
    ASSERT_TRUE(tokens);
    const std::vector<int32_t> beginning = tokenizer->encode("ab", false, false);
    const auto text = [&](const std::vector<int32_t>& from) {
        return tokenizer->decode(fill_prompt(*tokens, *tokenizer, from, "cd"), true);
    };
    EXPECT_EQ(text(beginning), "<|fim_prefix|>ab<|fim_suffix|>cd<|fim_middle|>");
    std::vector<int32_t> with_bos = beginning;
    with_bos.insert(with_bos.begin(), tokenizer->bos().value());
    EXPECT_EQ(text(with_bos), "<|begin_of_text|><|fim_prefix|>ab<|fim_suffix|>cd<|fim_middle|>");
    EXPECT_FALSE(fill_tokens(*with_special({"<|fim_prefix|>", "<|fim_suffix|>"})));
}

}  // namespace
}  // namespace refold
