// Formats of the output in requests, by the names of OpenAI, llama.cpp and vLLM.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/api_error.h"
#include "serve/completion_request.h"
#include "serve/ordered_field.h"

namespace refold {
namespace {

using testing::HasSubstr;
using Kind = OutputFormat::Kind;

OutputFormat format_of(const std::string& field) {
    OutputFormat format = parse_completion_request(R"({"prompt": "a", )" + field + "}").options.format;
    EXPECT_EQ(format.kind == Kind::any, format.field.empty());
    EXPECT_TRUE(format.field.empty() || field.starts_with("\"" + format.field + "\""));
    return format;
}

std::string refusal(const std::string& field) {
    try {
        format_of(field);
    } catch (const ApiError& error) {
        EXPECT_EQ(error.status, 400);
        return error.param + ": " + error.message;
    }
    return "taken";
}

TEST(OutputFormats, SchemasThatNeedNotBeKept) {
    const auto kind = [](const std::string& schema, const std::string& strict) {
        return format_of(R"("response_format": {"type": "json_schema", "json_schema": {"schema": )" + schema +
                         strict + "}}")
            .kind;
    };
    const std::string known = R"({"type": "object", "properties": {"a": {}}})",
                      unknown = R"({"not": {"pattern": "a"}})",
                      array = R"({"type": "array", "uniqueItems": true})", loose = R"(, "strict": false)";
    EXPECT_EQ(kind(known, loose), Kind::json_schema);
    EXPECT_EQ(kind(unknown, loose), Kind::json);
    // Refused when it is compiled.
    EXPECT_EQ(kind(unknown, ""), Kind::json_schema);
    EXPECT_EQ(kind(unknown, R"(, "strict": true)"), Kind::json_schema);
    EXPECT_EQ(kind(array, loose), Kind::json_schema);
}

TEST(OutputFormats, ByTheNamesThatClientsHave) {
    const OutputFormat schema{.kind = Kind::json_schema,
                              .text = R"({"type":"object","properties":{"b":{},"a":{}}})"};
    const std::string text = R"({"type": "object", "properties": {"b": {}, "a": {}}})";
    EXPECT_EQ(format_of(R"("response_format": {"type": "text"})"), OutputFormat{});
    EXPECT_EQ(format_of(R"("response_format": null)"), OutputFormat{});
    EXPECT_EQ(format_of(R"("response_format": {"type": "json_object"})"), OutputFormat{.kind = Kind::json});
    EXPECT_EQ(
        format_of(R"("response_format": {"type": "json_schema", "json_schema": {"name": "N", "strict": true,
                           "schema": )" +
                  text + "}}"),
        schema);
    EXPECT_EQ(format_of(R"("response_format": {"type": "json_object", "schema": )" + text + "}"), schema);
    EXPECT_EQ(format_of(R"("response_format": {"type": "json_schema", "json_schema": null, "schema": )" +
                        text + "}"),
              schema);
    EXPECT_EQ(format_of(R"("response_format": {"type": "json_object", "schema": null})"),
              OutputFormat{.kind = Kind::json});
    EXPECT_EQ(format_of(R"("json_schema": )" + text), schema);
    EXPECT_EQ(format_of(R"("guided_json": )" + text), schema);
    EXPECT_EQ(format_of(R"("structured_outputs": {"json": )" + text + R"(, "regex": null})"), schema);
    EXPECT_EQ(format_of(R"("guided_json": "true")"),
              (OutputFormat{.kind = Kind::json_schema, .text = "true"}));
    const OutputFormat grammar{.kind = Kind::grammar, .text = "root ::= \"a\""};
    EXPECT_EQ(format_of(R"("grammar": "root ::= \"a\"")"), grammar);
    EXPECT_EQ(format_of(R"("structured_outputs": {"grammar": "root ::= \"a\""})"), grammar);
    EXPECT_EQ(format_of(R"("guided_regex": "a+")"), (OutputFormat{.kind = Kind::regex, .text = "a+"}));
    EXPECT_EQ(format_of(R"("guided_choice": ["a", "b"])"),
              (OutputFormat{.kind = Kind::choice, .choices = {"a", "b"}}));
    EXPECT_EQ(format_of(R"("structured_outputs": {"json_object": true})"), OutputFormat{.kind = Kind::json});
}

TEST(OutputFormats, WrongOnesNameTheField) {
    EXPECT_THAT(refusal(R"("response_format": "json")"),
                HasSubstr("response_format: 'response_format': got \"json\""));
    EXPECT_THAT(refusal(R"("response_format": {"type": "xml"})"), HasSubstr("got type 'xml'"));
    EXPECT_THAT(refusal(R"("response_format": {"type": "json_schema", "json_schema": {"name": "N"}})"),
                HasSubstr("needs a 'schema'"));
    EXPECT_THAT(refusal(R"("response_format": {"type": "json_object", "pattern": "a+"})"),
                HasSubstr("'pattern': got \"a+\", which is not supported"));
    EXPECT_THAT(refusal(R"("response_format": {"type": "json_schema",
                           "json_schema": {"schema": {}, "strict": "yes"}})"),
                HasSubstr("'strict': got \"yes\""));
    EXPECT_THAT(refusal(R"("json_schema": 5)"), HasSubstr("json_schema: 'json_schema': got 5"));
    EXPECT_THAT(refusal(R"("guided_choice": "a")"), HasSubstr("expected an array of texts"));
    EXPECT_THAT(refusal(R"("structured_outputs": {"structural_tag": {}})"),
                HasSubstr("'structural_tag' is not supported"));
    EXPECT_THAT(refusal(R"("guided_regex": "a", "grammar": "root ::= \"a\"")"),
                HasSubstr("another format of the output than 'grammar'"));
    std::string large = "[0";
    for (size_t i = 0; i < kMostOrderedValues; ++i) large += ",0";
    EXPECT_THAT(refusal(R"("json_schema": {"enum": )" + large + "]}"), HasSubstr("more than 16384 values"));
}

TEST(OutputFormats, AFieldWithItsOrder) {
    const std::string body = R"({"z": {"y": [1, {"b": "\u00e9", "a": null}], "x": -2.5}, "a": true})";
    EXPECT_EQ(ordered_field(body, "z").dump(), "{\"y\":[1,{\"b\":\"\xc3\xa9\",\"a\":null}],\"x\":-2.5}");
    EXPECT_EQ(ordered_field(body, "a").dump(), "true");
    EXPECT_TRUE(ordered_field(body, "y").is_null());  // not of the outermost object
}

}  // namespace
}  // namespace refold
