// Which answers tools and formats allow.
#include "serve/conversation/answer_structure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/api_error.h"
#include "serve/conversation/forms.h"

namespace refold {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Mode = ToolChoice::Mode;
using Reasoning = AnswerParts::Reasoning;
using testing::HasSubstr;

const Tokenizer& tokenizer() {
    static const Tokenizer instance(REFOLD_FIXTURES "/llama_gqa/model.gguf");
    return instance;
}

// Whether the text, and no shorter one, may be a whole answer.
bool allowed(const AnswerStructure& structure, const std::string& text) {
    static GrammarCompiler compiler(tokenizer(), tokenizer().size());
    const auto grammar = compiler.compile_structure(structure);
    if (grammar == nullptr) return true;
    GrammarState state(grammar);
    for (const int32_t token : tokenizer().encode(text, false, false)) {
        if (!state.allows(token)) return false;
        state.accept(token);
    }
    return state.allows(tokenizer().eos().value());
}

const std::vector<Tool> kTools = {
    {.name = "weather",
     .parameters = {{"type", "object"},
                    {"properties", {{"city", {{"type", "string"}}}, {"days", {{"type", "integer"}}}}},
                    {"required", {"city"}}}},
    {.name = "now"},
    {.name = "here", .parameters = {{"type", "object"}, {"properties", OrderedJson::object()}}}};
const ToolChoice kAuto, kRequired{.mode = Mode::required};

std::string hermes(const std::string& name, const std::string& arguments) {
    return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments + "}\n</tool_call>";
}

TEST(AnswerStructure, HermesCalls) {
    const std::string weather = hermes("weather", R"({"city": "Oslo", "days": 2})"),
                      now = hermes("now", "{}");
    const AnswerStructure required = answer_structure(parts_of(kHermes), kTools, kRequired, {});
    for (const std::string& good :
         {weather, now, weather + "\n" + now, hermes("weather", R"({"city": "O"})"), hermes("here", "{}")})
        EXPECT_TRUE(allowed(required, good)) << good;
    for (const std::string& bad :
         {std::string(), std::string("Hello"), hermes("other", "{}"), hermes("weather", "{}"),
          hermes("weather", R"({"city": 3})"), hermes("now", R"({"x": 1})"), hermes("here", R"({"x": 1})"),
          weather + " then", weather.substr(0, weather.size() - 1)})
        EXPECT_FALSE(allowed(required, bad)) << bad;
    const AnswerStructure automatic = answer_structure(parts_of(kHermes), kTools, kAuto, {});
    for (const std::string& good : {std::string(), std::string("Hello {\"a\": <tool"), weather,
                                    "I look.\n\n" + weather, weather + "\n" + now})
        EXPECT_TRUE(allowed(automatic, good)) << good;
    for (const std::string& bad :
         {std::string("<tool_call>"), hermes("other", "{}"), "So: " + hermes("weather", "{}")})
        EXPECT_FALSE(allowed(automatic, bad)) << bad;
    const AnswerStructure one = answer_structure(
        parts_of(kHermes), kTools, {.mode = Mode::required, .allowed = {"now"}, .several = false}, {});
    EXPECT_TRUE(allowed(one, now));
    EXPECT_FALSE(allowed(one, weather));
    EXPECT_FALSE(allowed(one, now + "\n" + now));
}

TEST(AnswerStructure, MistralCalls) {
    const std::string one = R"({"name": "weather", "arguments": {"city": "Oslo"}})";
    for (const char* form : {kMistral7, kNemo}) {
        const std::string begin = std::string(form).substr(6, std::string(form).size() - 6);
        const AnswerStructure required = answer_structure(parts_of(form), kTools, kRequired, {});
        EXPECT_TRUE(allowed(required, begin + one + "]"));
        EXPECT_TRUE(allowed(required, begin + one + ", " + one + "]"));
        EXPECT_FALSE(allowed(required, begin + one));
        EXPECT_FALSE(allowed(required, begin + "]"));
        const AnswerStructure automatic = answer_structure(parts_of(form), kTools, kAuto, {});
        EXPECT_TRUE(allowed(automatic, "Text."));
        EXPECT_TRUE(allowed(automatic, "Text." + begin + one + "]"));
        EXPECT_FALSE(allowed(automatic, begin + R"({"name": "weather"}])"));
    }
    const AnswerStructure named = answer_structure(parts_of(kDevstral), kTools, kRequired, {});
    EXPECT_TRUE(allowed(named, R"([TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]weather[ARGS]{"city": ""})"));
    EXPECT_FALSE(allowed(named, "[TOOL_CALLS]weather[ARGS]{}"));
    const AnswerStructure ids = answer_structure(parts_of(kSmall32), kTools, kRequired, {});
    EXPECT_TRUE(allowed(ids, "[TOOL_CALLS]now[CALL_ID]aB3456789[ARGS]{}"));
    EXPECT_FALSE(allowed(ids, "[TOOL_CALLS]now[CALL_ID]a[ARGS]{}"));
}

TEST(AnswerStructure, LlamaCalls) {
    const std::string call = R"({"name": "weather", "parameters": {"city": "Oslo"}})";
    const AnswerStructure required = answer_structure(parts_of(kLlama), kTools, kRequired, {});
    EXPECT_TRUE(allowed(required, call));
    EXPECT_TRUE(allowed(required, "<|python_tag|>" + call));
    EXPECT_FALSE(allowed(required, call + call));
    EXPECT_FALSE(allowed(required, "Text"));
    const AnswerStructure automatic = answer_structure(parts_of(kLlama), kTools, kAuto, {});
    for (const std::string& good : {std::string(), call, "See " + call})
        EXPECT_TRUE(allowed(automatic, good)) << good;
    EXPECT_FALSE(allowed(automatic, R"({"city": 1})"));
}

TEST(AnswerStructure, FormatsFollowReasoning) {
    const OutputFormat format{.kind = OutputFormat::Kind::choice, .choices = {"yes", "no"}};
    const AnswerStructure begun = answer_structure(parts_of("</think>", Reasoning::begun), {}, {}, format);
    EXPECT_TRUE(allowed(begun, "\nyes or no\n</think>\n\nno"));
    EXPECT_FALSE(allowed(begun, "no"));
    const AnswerStructure may = answer_structure(parts_of("</think>", Reasoning::may_begin), {}, {}, format);
    EXPECT_TRUE(allowed(may, "<think>a</think>no"));
    EXPECT_TRUE(allowed(may, "no"));
    EXPECT_FALSE(allowed(may, "<think>a</think>"));
    EXPECT_EQ(answer_structure(parts_of("</think>", Reasoning::begun), {}, {}, {}).format, "");
    EXPECT_EQ(answer_structure(parts_of("x"), {}, {}, format).format, "");  // compiled as it is
    // Beside calls, the content has the format.
    const AnswerStructure both = answer_structure(parts_of(kHermes), kTools, kAuto, format);
    EXPECT_TRUE(allowed(both, "yes"));
    EXPECT_TRUE(allowed(both, hermes("now", "{}")));
    EXPECT_FALSE(allowed(both, "maybe"));
    const AnswerStructure thought =
        answer_structure(parts_of(kQwen3, Reasoning::begun), kTools, kRequired, {});
    EXPECT_TRUE(allowed(thought, "I call\n</think>\n\n" + hermes("now", "{}")));
    EXPECT_FALSE(allowed(thought, hermes("now", "{}")));
}

TEST(AnswerStructure, SchemasThatCannotBeEnforced) {
    Tool loose{.name = "f", .parameters = {{"type", "object"}, {"not", {{"pattern", "a"}}}}};
    const AnswerStructure any = answer_structure(parts_of(kHermes), {loose}, kRequired, {});
    EXPECT_TRUE(allowed(any, hermes("f", R"({"a": [1]})")));
    EXPECT_FALSE(allowed(any, hermes("f", "[1]")));
    loose.strict = true;
    try {
        answer_structure(parts_of(kHermes), {loose}, kRequired, {});
        FAIL();
    } catch (const ApiError& error) {
        EXPECT_EQ(error.status, 400);
        EXPECT_EQ(error.param, "tools");
        EXPECT_THAT(error.message, HasSubstr("'f' is strict, but"));
        EXPECT_THAT(error.message, HasSubstr("'not'"));
    }
}

}  // namespace
}  // namespace refold
