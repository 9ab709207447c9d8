#include "train/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error_of.h"
#include "train/tokenizers.h"

namespace refold {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> documents(const std::string& text, const std::string& name, bool responses_only,
                                   const TrainTokenizer& tokenizer = readable_tokenizer(),
                                   size_t part = 4 << 20) {
    std::vector<std::string> out;
    for_records(
        text, name,
        [&](const TrainRecord& record, const RecordLocation& location, size_t) {
            for (const auto& document : tokenize(record, tokenizer, responses_only, location))
                out.push_back(as_text(document.tokens) + "\n" + scored_text(document));
        },
        part);
    return out;
}

std::vector<std::string> scored(const std::string& text,
                                const TrainTokenizer& tokenizer = readable_tokenizer()) {
    std::vector<std::string> out;
    for_records(text, "x.jsonl", [&](const TrainRecord& record, const RecordLocation& location, size_t) {
        for (const auto& document : tokenize(record, tokenizer, true, location))
            out.push_back(scored_text(document));
    });
    return out;
}

// `text` as scored_text() shows it when it is not scored.
std::string dots(const std::string& text) { return std::string(text.size(), '.'); }

std::string problem(const std::string& text, ErrorCode code = ErrorCode::input,
                    const TrainTokenizer& tokenizer = readable_tokenizer(),
                    const std::string& name = "x.jsonl") {
    return error_of([&] { documents(text, name, true, tokenizer); }, code);
}

TEST(Records, PlainTextIsOneDocumentBetweenBosAndEos) {
    EXPECT_THAT(documents("Some text.", "a.txt", true), ElementsAre("^Some text.$\n.Some text.$"));
    EXPECT_THAT(documents("", "a.txt", true), ElementsAre());
}

TEST(Records, LongPlainTextComesInPartsOfWholeLines) {
    EXPECT_THAT(
        documents("aa\nbb\n\ncc dd eeeeeeeeeeeee", "a.txt", true, readable_tokenizer(), 8),
        ElementsAre("^aa\nbb\n\n\n.aa\nbb\n\n", "cc dd\ncc dd", " eeeeeee\n eeeeeee", "eeeeee$\neeeeee$"));
    // Characters are not cut.
    EXPECT_THAT(documents("\xc3\xa4\xc3\xa4\xc3\xa4", "a.txt", true, readable_tokenizer(), 3),
                ElementsAre("^\xc3\xa4\n.\xc3\xa4", "\xc3\xa4\n\xc3\xa4", "\xc3\xa4$\n\xc3\xa4$"));
}

TEST(Records, TextInJsonLinesIsADocumentPerLine) {
    EXPECT_THAT(documents("{\"text\": \"one\"}\n\n{\"text\": \"t\\u0077o\", \"id\": 3}\r\n", "x.jsonl", true),
                ElementsAre("^one$\n.one$", "^two$\n.two$"));
}

TEST(Records, JsonFilesMayBeOneList) {
    const std::string list =
        "[\n  {\"text\": \"a \\\" ] , b\"},\n  {\"text\": \"c\", \"more\": [{}, [1]]}\n]\n";
    EXPECT_THAT(documents(list, "x.json", true), ElementsAre("^a \" ] , b$\n.a \" ] , b$", "^c$\n.c$"));
    EXPECT_THAT(documents("[]", "x.json", true), ElementsAre());
    EXPECT_THAT(problem("[{\"text\": \"a\"},\n\n{\"text\": 1}]"),
                HasSubstr("'x.jsonl', line 3: 'text' is number"));
    EXPECT_THAT(problem("[{\"text\": \"a\"}"), HasSubstr("the list of records has no end"));
    EXPECT_THAT(problem("[{\"text\": \"a\"}]\n[]"), HasSubstr("line 2: there is more after the list"));
    EXPECT_THAT(problem("[{\"text\": \"a\"} {\"text\": \"b\"}]"), HasSubstr("line 1: no valid JSON"));
    EXPECT_THAT(problem("[{\"text\": \"a\"},,{\"text\": \"b\"}]"), HasSubstr("line 1: no valid JSON"));
}

// The prompts of Stanford's and UniAttn's programs.
TEST(Records, InstructionsAreAlpacasPromptAndTheAnswerIsScored) {
    const std::string with_input =
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a "
        "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 "
        "2\n\n### "
        "Response:";
    const std::string without_input =
        "Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request.\n\n### Instruction:\nAdd.\n\n### Response:";
    const auto masked = [](const std::string& prompt) {
        return "^" + prompt + "3$\n" + std::string(prompt.size() + 1, '.') + "3$";
    };
    EXPECT_THAT(
        documents(R"({"instruction": "Add.", "input": "1 2", "output": "3"})"
                  "\n"
                  R"({"instruction": "Add.", "input": "", "output": "3", "text": "unused"})"
                  "\n"
                  R"({"input": "1 2", "output": "3"})",
                  "x.jsonl", true),
        ElementsAre(masked(with_input), masked(without_input), masked("### Input:\n1 2\n\n### Response:")));
    EXPECT_THAT(documents(R"({"instruction": "Add.", "output": "3"})", "x.jsonl", false),
                ElementsAre("^" + without_input + "3$\n." + without_input + "3$"));
}

// A tokenizer that joins two letters across the end of the prompt.
TEST(Records, ATokenOfPromptAndAnswerIsTheAnswers) {
    TrainTokenizer tokenizer = readable_tokenizer();
    tokenizer.tokens = [](std::string_view text) {
        std::vector<int32_t> out;
        for (size_t at = 0; at < text.size(); ++at) {
            const bool joined = text.substr(at).starts_with(":3");
            out.push_back(joined ? '#' : text[at]);
            at += joined ? 1 : 0;
        }
        return out;
    };
    const auto texts = scored(R"({"input": "1", "output": "3"})", tokenizer);
    ASSERT_EQ(texts.size(), 1U);
    EXPECT_THAT(texts[0], testing::EndsWith("..#$"));
}

TEST(Records, AnswersOfDialoguesAreScoredWithTheEndOfTheTurn) {
    const std::string two =
        R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
 {"role": "assistant", "content": "One"}, {"role": "user", "content": "V"}, {"role": "assistant", "content": "Two"}]})";
    std::string line = two;
    std::erase(line, '\n');
    EXPECT_THAT(documents(line, "x.jsonl", true),
                ElementsAre("^system: S|\nuser: U|\nassistant: One|\nuser: V|\nassistant: Two|\n\n" +
                            dots("^system: S|\nuser: U|\nassistant: ") + "One|" +
                            dots("\nuser: V|\nassistant: ") + "Two|" + dots("\n")));
    EXPECT_THAT(documents(line, "x.jsonl", false),
                ElementsAre("^system: S|\nuser: U|\nassistant: One|\nuser: V|\nassistant: Two|\n\n"
                            ".system: S|\nuser: U|\nassistant: One|\nuser: V|\nassistant: Two|\n"));
}

TEST(Records, ShareGptIsADialogue) {
    EXPECT_THAT(
        scored(R"({"conversations": [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A"}]})"),
        ElementsAre(dots("^user: U|\nassistant: ") + "A|."));
    EXPECT_THAT(problem(R"({"conversations": [{"from": "tool", "value": "U"}]})"),
                HasSubstr("line 1: 'from' is 'tool', expected human, gpt or system"));
}

TEST(Records, ATemplateThatWritesBosGetsNoSecondOne) {
    TrainTokenizer tokenizer = readable_tokenizer();
    tokenizer.before = {'u'};
    EXPECT_THAT(
        documents(
            R"({"messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]})",
            "x.jsonl", false, tokenizer),
        ElementsAre("user: U|\nassistant: A|\n\n.ser: U|\nassistant: A|\n"));
}

// Like templates of reasoning models, keeps the text before "/think" only in the last answer.
TEST(Records, ATemplateThatRewritesFormerTurnsGivesADocumentPerAnswer) {
    TrainTokenizer tokenizer = readable_tokenizer();
    tokenizer.dialogue = [](std::span<const TrainTokenizer::Message> dialogue, bool answer_follows) {
        std::vector<TrainTokenizer::Message> shown(dialogue.begin(), dialogue.end());
        for (size_t i = 0; i + 1 < shown.size(); ++i) {
            const size_t end = shown[i].content.find("/think ");
            if (end != std::string::npos) shown[i].content.erase(0, end + 7);
        }
        return plain_dialogue(shown, answer_follows);
    };
    EXPECT_THAT(
        scored(
            R"({"messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "x/think A"},)"
            R"( {"role": "user", "content": "V"}, {"role": "assistant", "content": "y/think B"}]})",
            tokenizer),
        ElementsAre(dots("^user: U|\nassistant: ") + "x/think A|.",
                    dots("^user: U|\nassistant: A|\nuser: V|\nassistant: ") + "y/think B|."));
}

TEST(Records, ATemplateThatChangesItsBeginningIsRefused) {
    TrainTokenizer tokenizer = readable_tokenizer();
    tokenizer.dialogue = [](std::span<const TrainTokenizer::Message> dialogue, bool answer_follows) {
        return std::to_string(dialogue.size()) + plain_dialogue(dialogue, answer_follows);
    };
    EXPECT_THAT(
        problem(R"({"messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]})",
                ErrorCode::input, tokenizer),
        HasSubstr("line 1: the chat template writes the messages before message 2 in another way"));
}

// Prompts may end with more text than the answer begins with (a mark for thinking).
TEST(Records, WhatOnlyThePromptHasIsNotNeeded) {
    TrainTokenizer tokenizer = readable_tokenizer();
    tokenizer.dialogue = [](std::span<const TrainTokenizer::Message> dialogue, bool answer_follows) {
        return plain_dialogue(dialogue, answer_follows) + (answer_follows ? "<think>" : "");
    };
    EXPECT_THAT(
        scored(R"({"messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]})",
               tokenizer),
        ElementsAre(dots("^user: U|\nassistant: ") + "A|."));
}

TEST(Records, WhatTheTemplateRefusesNamesTheLine) {
    TrainTokenizer tokenizer = readable_tokenizer();
    tokenizer.dialogue = [](std::span<const TrainTokenizer::Message>, bool) -> std::string {
        fail(ErrorCode::input, "template", "roles must alternate");
    };
    EXPECT_THAT(
        problem("\n"
                R"({"messages": [{"role": "user", "content": "U"}]})",
                ErrorCode::input, tokenizer),
        AllOf(HasSubstr("line 2"), HasSubstr("refuses the dialogue"), HasSubstr("roles must alternate")));
    tokenizer.dialogue = nullptr;
    EXPECT_THAT(
        problem(R"({"messages": [{"role": "user", "content": "U"}]})", ErrorCode::unsupported, tokenizer),
        AllOf(HasSubstr("line 1"), HasSubstr("no chat template")));
    EXPECT_THAT(problem(R"({"messages": [{"role": "user", "content": "U"}]})"),
                HasSubstr("without a message of the assistant"));
}

TEST(Records, BadLinesAreNamed) {
    EXPECT_THAT(problem("{\"text\": \"a\"}\n{\"text\": \"b\""),
                HasSubstr("'x.jsonl', line 2: no valid JSON"));
    EXPECT_THAT(problem("{\"text\": \"a\"}\n[1]"), HasSubstr("line 2: got array"));
    EXPECT_THAT(problem("{\"text\": \"\xff\"}"), HasSubstr("line 1: no valid UTF-8 at its byte 11"));
    EXPECT_THAT(problem("abc\xff", ErrorCode::input, readable_tokenizer(), "x.txt"),
                HasSubstr("'x.txt': no valid UTF-8 at byte 4: convert it first"));
    EXPECT_THAT(problem("{\"prompt\": \"a\", \"completion\": \"b\"}"),
                AllOf(HasSubstr("line 1: a record of unknown kind, with prompt, completion"),
                      HasSubstr("'messages'")));
    EXPECT_THAT(problem("{\"messages\": []}"), HasSubstr("'messages' is no list of messages"));
    EXPECT_THAT(problem("{\"messages\": [\"a\"]}"), HasSubstr("a message in 'messages' is string"));
    EXPECT_THAT(problem("{\"messages\": [{\"role\": \"user\"}]}"), HasSubstr("'content' is missing"));
    EXPECT_THAT(problem("{\"instruction\": [], \"output\": \"a\"}"), HasSubstr("'instruction' is array"));
}

}  // namespace
}  // namespace refold
