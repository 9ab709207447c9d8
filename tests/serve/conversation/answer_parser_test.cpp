// Answers of all forms, with the text cut at every position.
#include "serve/conversation/answer_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/conversation/forms.h"

namespace refold {
namespace {

using Kind = AnswerPart::Kind;
using Reasoning = AnswerParts::Reasoning;
using Parts = std::vector<AnswerPart>;

void add(Parts& to, Parts from) {
    for (AnswerPart& part : from) {
        if (!to.empty() && to.back().kind == part.kind && part.kind != Kind::call) {
            to.back().text += part.text;
        } else {
            to.push_back(std::move(part));
        }
    }
}

Parts parsed(const AnswerParts& form, const std::vector<std::string>& pieces) {
    AnswerParser parser(form);
    Parts out;
    for (const std::string& piece : pieces) add(out, parser.push(piece));
    add(out, parser.finish());
    return out;
}

void expect(const AnswerParts& form, const std::string& text, const Parts& expected) {
    EXPECT_EQ(parsed(form, {text}), expected) << text;
    for (size_t cut = 1; cut < text.size(); ++cut)
        ASSERT_EQ(parsed(form, {text.substr(0, cut), text.substr(cut)}), expected) << text.substr(0, cut);
    std::vector<std::string> bytes;
    for (const char c : text) bytes.emplace_back(1, c);
    EXPECT_EQ(parsed(form, bytes), expected) << text;
}

AnswerPart content(std::string text) { return {Kind::content, std::move(text)}; }
AnswerPart reasoning(std::string text) { return {Kind::reasoning, std::move(text)}; }
AnswerPart call(std::string name, std::string id = "") {
    return {Kind::call, std::move(name), std::move(id)};
}
AnswerPart arguments(std::string text) { return {Kind::arguments, std::move(text)}; }

TEST(AnswerParser, Hermes) {
    const AnswerParts form = parts_of(kHermes);
    expect(form, "Hello <there> ", {content("Hello <there> ")});
    expect(form, "", {});
    expect(form,
           "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\\\"\"}]}}\n</tool_call>",
           {call("f"), arguments(R"({"a": [1, {"b": "}\""}]})")});
    expect(form,
           "I look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
           "{}}\n</tool_call>\n<tool_call>{\"name\":\"g\","
           "\"arguments\":{\"x\":1}}</tool_call>\n then",
           {content("I look."), call("f"), arguments("{}"), call("g"), arguments(R"({"x":1})"),
            content("then")});
    // The name after the arguments; none; as a text of JSON; another name of the key.
    expect(form, R"(<tool_call>{"arguments": {"a": 1}, "id": 7, "name": "f"}</tool_call>)",
           {call("f"), arguments(R"({"a": 1})")});
    expect(form, R"(<tool_call>{"name": "f"}</tool_call>)", {call("f"), arguments("{}")});
    expect(form, R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)",
           {call("f"), arguments(R"({"a": 1})")});
    expect(form, R"(<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>)",
           {call("f"), arguments(R"({"a": 1})")});
    expect(form, R"(<tool_call>{"name": "f", "arguments": null}</tool_call>)", {call("f"), arguments("{}")});
    // Of two names the first one counts: it may have been told before the other one came.
    expect(form, R"(<tool_call>{"name": "f", "name": "g", "arguments": {}, "name": 3}</tool_call>)",
           {call("f"), arguments("{}")});
    // Line ends within texts of the arguments are written as JSON has them.
    expect(form, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\":\n\"b\nc\td\"}}</tool_call>",
           {call("f"), arguments("{\"a\":\n\"b\\u000ac\\u0009d\"}")});
}

TEST(AnswerParser, WhatIsNoCallStaysContent) {
    const AnswerParts form = parts_of(kHermes);
    for (const char* text : {"a <tool_call>none</tool_call> b", "<tool_call>{\"name\": 3}",
                             "<tool_call>{\"arguments\": {}}</tool_call>", "<tool_cal"})
        expect(form, text, {content(text)});
    expect(form, "<tool_call>[]</tool_call><tool_call>{\"name\": \"f\"}</tool_call>",
           {content("<tool_call>[]</tool_call>"), call("f"), arguments("{}")});
    // A template that has no calls.
    expect({}, " <tool_call>{\"name\": \"f\"}</tool_call> ",
           {content(" <tool_call>{\"name\": \"f\"}</tool_call> ")});
}

// Before the name nobody has been told of a call.
TEST(AnswerParser, MarksOfCallsThatBreakOffAreNoText) {
    expect(parts_of(kHermes), "<tool_call>", {});
    expect(parts_of(kHermes), "x <tool_call>{\"name\": \"f", {content("x")});
    expect(parts_of(kHermes), "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>\n",
           {call("f"), arguments("{}")});
    expect(parts_of(kNemo), "[TOOL_CALLS] [", {});
    expect(parts_of(kNemo), "[TOOL_CALLS]", {});
    AnswerParser parser(parts_of(kHermes));
    parser.push("<tool_call>\n{\"na");
    EXPECT_FALSE(parser.cut());
    parser.finish();
    EXPECT_TRUE(parser.cut());
}

// As when there were too many tokens, or a stop text came.
Parts cut(const AnswerParts& form, const std::string& text, const std::string& stop, bool by_byte) {
    AnswerParser parser(form);
    Parts out;
    for (size_t i = 0; i < text.size(); i += by_byte ? 1 : text.size())
        add(out, parser.push(text.substr(i, by_byte ? 1 : text.size())));
    GenerationEvent last;
    last.finished = stop.empty() ? FinishReason::length : FinishReason::stop;
    last.stop_text = stop;
    add(out, parser.parts(last));
    return out;
}

// No beginning of a call is shown as text, wherever the answer is cut, before its name is known.
TEST(AnswerParser, BeginningsOfMarksThatAreCutAreNoText) {
    const std::vector<std::pair<const char*, std::string>> calls = {
        {kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"},
        {kNemo, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]"},
        {kMistral7, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]"},
        {kDevstral, "[TOOL_CALLS]f[ARGS]{}"},
        {kSmall32, "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}"},
        {kLlama, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\"}"},
        {kLlama, "{\"name\": \"f\", \"parameters\": {}}"}};
    for (const auto& [form, call_text] : calls) {
        for (const char* before : {"", "I look. \n"}) {
            if (*before != '\0' && form == kLlama) continue;  // calls are all of its answer
            for (size_t length = 1; length <= call_text.size(); ++length) {
                const std::string text = before + call_text.substr(0, length);
                for (const bool by_byte : {false, true}) {
                    const Parts parts = cut(parts_of(form), text, "", by_byte);
                    for (const AnswerPart& part : parts)
                        EXPECT_TRUE(part.kind != Kind::content || part.text == "I look.") << form << text;
                    EXPECT_EQ(parts.empty() || parts[0].kind != Kind::content, *before == '\0') << text;
                    if (length == call_text.size()) continue;
                    // A stop text that goes on with the call.
                    const std::string stop = call_text.substr(length, 3);
                    for (const AnswerPart& part : cut(parts_of(form), text, stop, by_byte))
                        EXPECT_TRUE(part.kind != Kind::content || part.text == "I look.") << text << stop;
                }
            }
        }
    }
    AnswerParser parser(parts_of(kHermes));
    parser.push("x <tool");
    parser.finish("");
    EXPECT_TRUE(parser.cut());
}

TEST(AnswerParser, WhatIsNoBeginningOfAMarkStaysContentWhenItIsCut) {
    const AnswerParts form = parts_of(kHermes);
    for (const char* text : {"a > b ", "a <b", "<tool-call", "tool_call>"})
        EXPECT_EQ(cut(form, text, "", true), Parts{content(text)});
    // The stop text is known, and goes on otherwise.
    EXPECT_EQ(cut(form, "if a <", " b", true), Parts{content("if a <")});
    EXPECT_EQ(cut(form, "if a <", "\n", false), Parts{content("if a <")});
    // The model has ended it.
    EXPECT_EQ(parsed(form, {"a <tool"}), Parts{content("a <tool")});
    // JSON that was asked for is no call.
    AnswerParts json = parts_of(kLlama);
    json.json = true;
    EXPECT_EQ(cut(json, "{\"val", "", true), Parts{content("{\"val")});
}

TEST(AnswerParser, BeginningsOfMarksOfReasoningThatAreCut) {
    const std::string text = "<think>Well";
    for (size_t length = 1; length <= 7; ++length)
        EXPECT_EQ(cut(parts_of(kQwen3, Reasoning::may_begin), text.substr(0, length), "", true), Parts{});
    for (const char* end : {"<", "</thi", "</think"})
        EXPECT_EQ(cut(parts_of(kQwen3, Reasoning::begun), "Well" + std::string(end), "", true),
                  Parts{reasoning("Well")});
}

TEST(AnswerParser, CallsThatBreakOff) {
    expect(parts_of(kHermes), R"(<tool_call>{"name": "f", "arguments": {"a": "b)",
           {call("f"), arguments(R"({"a": "b)")});
    expect(parts_of(kHermes), R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_)",
           {call("f"), arguments(R"({"a": 1})")});
    expect(parts_of(kNemo), R"([TOOL_CALLS][{"name": "f", "arguments": {"a": 1}})",
           {call("f"), arguments(R"({"a": 1})")});
}

TEST(AnswerParser, Mistral) {
    for (const char* form : {kNemo, kMistral7}) {
        expect(parts_of(form),
               "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\"}]",
               {call("f"), arguments(R"({"a": 1})"), call("g"), arguments("{}")});
        expect(parts_of(form),
               "Well [TOOL_CALLS][{\"arguments\": {\"a\": 1}, \"name\": \"f\", \"id\": \"x\"}] ",
               {content("Well"), call("f"), arguments(R"({"a": 1})")});
        expect(parts_of(form), "[TOOL_CALLS] f", {content("[TOOL_CALLS] f")});
    }
    expect(parts_of(kDevstral), "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g{}",
           {call("f"), arguments(R"({"a": 1})"), call("g"), arguments("{}")});
    expect(parts_of(kSmall32), "So.[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"a\": 1}",
           {content("So."), call("f", "abcdefghi"), arguments(R"({"a": 1})")});
    expect(parts_of(kSmall32), "[TOOL_CALLS]f[ARGS]{}", {call("f"), arguments("{}")});
    expect(parts_of(kSmall32), "[TOOL_CALLS] two words {", {content("[TOOL_CALLS] two words {")});
    expect(parts_of(kSmall32), "[TOOL_CALLS]name", {});
    // What is too long for a name is none, even if its end is there already.
    const std::string no_name(300, 'f');
    expect(parts_of(kSmall32), "[TOOL_CALLS]" + no_name + "[ARGS]{}[TOOL_CALLS]g{}",
           {content("[TOOL_CALLS]" + no_name + "[ARGS]{}"), call("g"), arguments("{}")});
}

TEST(AnswerParser, Llama) {
    const AnswerParts form = parts_of(kLlama);
    expect(form, R"({"name": "f", "parameters": {"a": 1}})", {call("f"), arguments(R"({"a": 1})")});
    expect(form, R"(<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}})",
           {call("f"), arguments(R"({"a": 1})"), call("g"), arguments("{}")});
    expect(form, R"({"type": "function", "name": "f", "parameters": {}})", {call("f"), arguments("{}")});
    expect(form, R"(Use {"name": "f", "parameters": {}})",
           {content(R"(Use {"name": "f", "parameters": {}})")});
    expect(form, R"({"value": 1})", {content(R"({"value": 1})")});
    expect(form, "<|python_tag|>print(1)", {content("<|python_tag|>print(1)")});
    expect(form, " Hello", {content(" Hello")});
}

TEST(AnswerParser, Reasoning) {
    const AnswerParts begun = parts_of(kQwen3, Reasoning::begun),
                      may = parts_of(kQwen3, Reasoning::may_begin);
    expect(begun, "\nI <think> so. \n</think>\n\nYes.", {reasoning("I <think> so."), content("Yes.")});
    expect(begun, "endless </thin ", {reasoning("endless </thin")});
    expect(may, " <think>\n\n</think>\n\nYes. ", {content("Yes. ")});
    expect(may, "<think>a</think><think>b</think>", {reasoning("a"), content("<think>b</think>")});
    expect(may, "Yes <think>a</think>", {content("Yes <think>a</think>")});
    expect(may, "<thi", {content("<thi")});
    // Calls are looked for behind it, not within.
    expect(may,
           "<think>\n<tool_call>{\"name\": \"g\"}\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
           "{}}\n"
           "</tool_call>",
           {reasoning("<tool_call>{\"name\": \"g\"}"), call("f"), arguments("{}")});
    AnswerParts whole = parts_of(kLlama);
    whole.marks = {"<think>", "</think>"};
    whole.reasoning = Reasoning::begun;
    expect(whole, R"(a</think> {"name": "f"})", {reasoning("a"), call("f"), arguments("{}")});
}

TEST(AnswerForm, IsThatOfTheTemplate) {
    const auto name = [](const char* text) {
        const AnswerForm form = answer_form(text);
        return form.tools == nullptr ? "" : std::string(form.tools->name);
    };
    EXPECT_EQ(name(kHermes), "Hermes");
    EXPECT_EQ(name(kNemo), "Mistral");
    EXPECT_EQ(name(kMistral7), "Mistral");
    EXPECT_EQ(answer_form(kMistral7).tools->before, " ");
    EXPECT_EQ(name(kDevstral), "Mistral with names");
    EXPECT_EQ(name(kSmall32), "Mistral with ids");
    EXPECT_EQ(name(kLlama), "Llama 3");
    EXPECT_EQ(name("tools <tool_call> arguments <function=f>"), "");  // Qwen3-Coder
    EXPECT_TRUE(answer_form("{% if tools %}").takes_tools);
    EXPECT_FALSE(answer_form("{% for m in messages %} my_tools tools_in").takes_tools);
    EXPECT_EQ(answer_form("[/THINK]").reasoning.begin, "[THINK]");
    EXPECT_EQ(answer_form("nothing").reasoning.end, "");
    EXPECT_THAT(marks_of(answer_form(kSmall32)),
                testing::UnorderedElementsAre("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"));
}

}  // namespace
}  // namespace refold
