#include "grammar/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "core/error.h"
#include "grammar/small_vocabulary.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Kind = OutputFormat::Kind;

// A text of tokens that are drawn among those that may come next, evenly; it ends as soon as it may after
// `tokens` tokens. Nothing when it has not ended after ten times as many.
std::string walk(const OutputFormat& format, uint32_t seed, int tokens = 20) {
    GrammarState state(compiler().compile(format));
    std::mt19937 random(seed);
    std::string text;
    for (int step = 0; step < 10 * tokens; ++step) {
        std::vector<int32_t> next;
        bool may_end = false;
        for (int32_t token = 0; token < kVocab; ++token) {
            if (!state.allows(token)) continue;
            if (token < tokenizer().size() && tokenizer().is_end_of_generation(token)) {
                may_end = true;
                if (step >= tokens || next.empty()) next.push_back(token);
            } else {
                next.push_back(token);
            }
        }
        if (next.empty()) ADD_FAILURE() << "nothing may follow " << text;
        if (next.empty()) return text;
        const bool end = may_end && step >= tokens;
        const int32_t token = end ? tokenizer().eos().value() : next[random() % next.size()];
        state.accept(token);
        if (state.ended()) return text;
        text += tokenizer().piece(token, false);
    }
    return "";
}

std::string schema_error(const json& schema) {
    try {
        compiler().compile({.kind = Kind::json_schema, .text = schema.dump()});
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::usage);
        return error.what();
    }
    return "no error";
}

TEST(Grammar, OneOfTheChoices) {
    const OutputFormat format{.kind = Kind::choice,
                              .choices = {"yes", "no", "a \"b\"\n\xc3\xa9", "\xf0\x9f\x98\x80"}};
    std::set<std::string> seen;
    for (uint32_t seed = 0; seed < 60; ++seed) seen.insert(walk(format, seed));
    EXPECT_EQ(seen, (std::set<std::string>{format.choices.begin(), format.choices.end()}));
}

TEST(Grammar, RegularExpressionsHoldForTheWholeText) {
    const OutputFormat format{.kind = Kind::regex, .text = "(19|20)[0-9]{2}-(0[1-9]|1[0-2])"};
    for (uint32_t seed = 0; seed < 20; ++seed) {
        const std::string text = walk(format, seed);
        EXPECT_TRUE(std::regex_match(text, std::regex(format.text))) << text;
    }
}

TEST(Grammar, Gbnf) {
    const OutputFormat format{.kind = Kind::grammar,
                              .text = "root ::= number (\" + \" number)*\nnumber ::= [1-9] [0-9]{0,2}\n"};
    for (uint32_t seed = 0; seed < 20; ++seed) {
        const std::string text = walk(format, seed);
        EXPECT_TRUE(std::regex_match(text, std::regex("[1-9][0-9]{0,2}( \\+ [1-9][0-9]{0,2})*"))) << text;
    }
}

TEST(Grammar, JsonIsAnObject) {
    int complete = 0;
    for (uint32_t seed = 0; seed < 40; ++seed) {
        const std::string text = walk({.kind = Kind::json}, seed, 40);
        if (text.empty()) continue;  // random text nests deeper and deeper
        ++complete;
        EXPECT_TRUE(json::parse(text, nullptr, false).is_object()) << text;
    }
    EXPECT_GT(complete, 5);
}

TEST(Grammar, DocumentsFollowTheirSchema) {
    const json schema = json::parse(R"({
        "type": "object", "title": "Person", "$defs": {"place": {"type": "object",
            "properties": {"city": {"enum": ["Bern", "Oslo"]}, "zip": {"type": "string", "pattern": "^[0-9]{4}$"}},
            "required": ["city", "zip"], "additionalProperties": false}},
        "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 5},
            "age": {"type": "integer", "minimum": 7, "maximum": 120},
            "home": {"$ref": "#/$defs/place"},
            "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
            "kind": {"anyOf": [{"const": 3}, {"type": "null"}]}},
        "required": ["name", "age", "home", "tags", "kind"], "additionalProperties": false})");
    const OutputFormat format{.kind = Kind::json_schema, .text = schema.dump()};
    for (uint32_t seed = 0; seed < 25; ++seed) {
        const std::string text = walk(format, seed, 30);
        ASSERT_FALSE(text.empty());
        const json document = json::parse(text);
        EXPECT_EQ(document.size(), 5U) << text;
        EXPECT_GE(document.at("name").get<std::string>().size(), 1U);
        EXPECT_GE(document.at("age").get<int>(), 7);
        EXPECT_LE(document.at("age").get<int>(), 120);
        EXPECT_EQ(document.at("home").size(), 2U);
        EXPECT_EQ(document.at("home").at("zip").get<std::string>().size(), 4U);
        EXPECT_LE(document.at("tags").size(), 3U);
        EXPECT_TRUE(document.at("kind").is_null() || document.at("kind") == 3);
    }
}

TEST(Grammar, WhatCannotBeGuaranteedIsRefused) {
    const auto object = [](json properties) {
        return json{{"type", "object"}, {"properties", std::move(properties)}};
    };
    EXPECT_THAT(schema_error(object({{"a", {{"type", "array"}, {"items", true}, {"uniqueItems", true}}}})),
                HasSubstr("#/properties/a: 'uniqueItems' cannot be enforced"));
    EXPECT_THAT(schema_error({{"type", "number"}, {"multipleOf", 0.5}}), HasSubstr("multipleOf"));
    EXPECT_THAT(schema_error({{"type", "string"}, {"pattern", "a+"}, {"maxLength", 3}}),
                HasSubstr("maxLength"));
    EXPECT_THAT(schema_error({{"$ref", "#/$defs/none"}}), HasSubstr("none"));
    EXPECT_THAT(schema_error({{"type", "string"}, {"pattern", "(?=a)b"}}), HasSubstr("ookahead"));
    EXPECT_THAT(schema_error({{"type", "strin"}}), HasSubstr("strin"));
    EXPECT_THAT(schema_error({{"type", "integer"}, {"minimum", 3}, {"maximum", 2}}), HasSubstr("minimum"));
    EXPECT_THAT(schema_error(3), HasSubstr("an object, got number"));
}

bool accepts(const json& schema, const std::string& text) {
    GrammarState state(compiler().compile({.kind = Kind::json_schema, .text = schema.dump()}));
    for (const int32_t token : tokenizer().encode(text, false, false)) {
        if (!state.allows(token)) return false;
        state.accept(token);
    }
    return state.allows(tokenizer().eos().value());
}

// A further property cannot have the name of one that is described, with another value.
TEST(Grammar, FurtherPropertiesHaveOtherNames) {
    const json schema = json::parse(R"({"type": "object", "properties": {"ab": {"type": "integer"}},
                                        "additionalProperties": {"type": "string"}})");
    EXPECT_TRUE(accepts(schema, R"({"ab": 1, "ac": "x"})"));
    EXPECT_TRUE(accepts(schema, R"({"a": "x", "abc": "x"})"));
    EXPECT_FALSE(accepts(schema, R"({"ab": 1, "ac": 2})"));
    EXPECT_FALSE(accepts(schema, R"({"ab": "x"})"));
    EXPECT_FALSE(accepts(schema, R"({"ab": 1, "ab": "x"})"));
}

TEST(Grammar, DocumentsOfASchemaWithoutATypeFollowIt) {
    for (uint32_t seed = 0; seed < 10; ++seed) {
        const std::string text = walk({.kind = Kind::json_schema, .text = R"({"maxLength": 3})"}, seed);
        EXPECT_LE(json::parse(text).get<std::string>().size(), 12U) << text;  // three characters
    }
}

// The grammar of what parts of a schema say together.
TEST(Grammar, PartsOfASchemaHoldTogether) {
    const json either =
        json::parse(R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
                                        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})");
    EXPECT_TRUE(accepts(either, R"({"a": 1})"));
    EXPECT_TRUE(accepts(either, R"({"b": null})"));
    EXPECT_FALSE(accepts(either, R"({"a": 1, "b": null})"));
    EXPECT_FALSE(accepts(either, "{}"));
    const json tree = json::parse(
        R"({"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "allOf": [{"$ref": "#/$defs/node"}, {"properties": {"name": {"const": "x"}}, "required": ["name"]}]})");
    EXPECT_TRUE(accepts(tree, R"({"next": {"next": {}}, "name": "x"})"));
    EXPECT_FALSE(accepts(tree, R"({"next": {}})"));
    EXPECT_TRUE(accepts(
        json::parse(R"({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}})"),
        R"({"b": null})"));
}

struct Strings {
    const char* format;
    std::vector<std::string> good, bad;
};

// RFC 3339, 2673, 4291, 1123, 5321, 4122, 3986, 6570 and 6901. What is bad must not be generated; not all
// that is good by the RFC has to be.
TEST(Grammar, StringsHaveTheirFormat) {
    const std::string label(61, 'a');
    const std::vector<Strings> all = {
        {"date",
         {"2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30", "0001-01-01", "2400-02-29"},
         {"2023-02-29", "1900-02-29", "2100-02-29", "2023-02-30", "2023-04-31", "2023-06-31", "2023-13-01",
          "2023-00-10", "2023-01-00", "2023-01-32", "0000-01-01", "23-01-01", "2023-1-1", "2023-01-01T"}},
        {"time",
         {"00:00:00Z", "23:59:59.123456789+23:59", "12:30:00-00:00"},
         {"24:00:00Z", "12:60:00Z", "12:00:61Z", "12:00:60Z", "12:00:00", "12:00Z", "12:00:00.Z",
          "12:00:00+24:00", "12:00:00+0100"}},
        {"date-time",
         {"2024-02-29T23:59:59Z", "1985-04-12T23:20:50.52+01:00"},
         {"2023-02-29T00:00:00Z", "2023-06-31T00:00:00Z", "1990-12-31T15:59:60Z", "2024-01-01 00:00:00Z",
          "2024-01-01T00:00:00", "2024-01-01T24:00:00Z"}},
        {"duration",
         {"P1D", "PT1H2M3S", "P1Y2M3DT4S", "P4W"},
         {"P", "PT", "P1", "1D", "P1YT", "P1D2H", "P1W2D"}},
        {"ipv4",
         {"0.0.0.0", "255.255.255.255", "1.20.103.9"},
         {"01.2.3.4", "1.02.3.4", "1.2.3.007", "00.0.0.0", "256.1.1.1", "1.2.3", "1.2.3.4.5", "1.2..4",
          "1.2.3.4 "}},
        {"ipv6",
         {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "2001:db8::ff00:42:8329", "::ffff:192.0.2.1",
          "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "64:ff9b::192.0.2.33"},
         {"", ":", "1", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "12345::", "1::2::3", ":1", "1:", "::g",
          "::ffff:01.2.3.4", "::ffff:1.2.3.007", "::1.2.3", "1:2:3:4:5:6:7:1.2.3.4",
          "1:2:3:4:5:6:7:8::", "::1%eth0"}},
        {"hostname",
         {"a", "localhost", "example.org", "a-b.c-d.e1", "1.2", std::string(24, 'a') + ".com"},
         {"", "-a", "a-", "a..b", ".a", "a.", "a_b", "a b", "a.-b", "a-.b", std::string(64, 'a'), "xn--a-",
          label + "." + label + "." + label + "." + label + "." + label, "ex\u00e4mple.org"}},
        {"email",
         {"joe@example.org", "a.b+c@x-y.z", "o'neil/x@a"},
         {"joe", "@a", "a@", ".a@b", "a.@b", "a..b@c", "a b@c", "a@-b", "a@b-", "a@b..c", "a@b_c",
          R"(\"a\"@b)", R"(\"\q\"@b)", std::string(65, 'a') + "@b", "a@" + std::string(64, 'b')}},
        {"uuid",
         {"123e4567-e89b-12d3-a456-426614174000"},
         {"123e4567-e89b-12d3-a456-42661417400", "123e4567e89b12d3a456426614174000",
          "g23e4567-e89b-12d3-a456-426614174000"}},
        {"uri",
         {"http://example.org/a?b=c#d", "urn:isbn:0", "mailto:a@b", "a:"},
         {"", "a", "//a", "http://a b", "http://a/%zz", ":a", "1a:b", R"(a:\"b)", "a:<b>", "a:\\\\b"}},
        {"uri-reference", {"", "a", "//a/b", "/a?b", "#c", "../a"}, {"a b", "%", "a:b%", "<a>", R"(\")"}},
        {"uri-template",
         {"", "a/{b}", "{+c*}{?d,e:3}", "%41"},
         {"{", "a}", "{}", "{a b}", "%4", "<a>", R"(\")"}},
        {"json-pointer",
         {"", "/", "/a~0b~1c", "/foo//0"},
         {"a", "/~", "/~2", "/a~", R"(/a\"b)", "/\\\\", "#/a"}},
        {"relative-json-pointer", {"0", "1/a", "0#", "20/~1"}, {"", "/a", "-1", "01", "0##", "1/~2", "#"}}};
    for (const Strings& one : all) {
        const json schema = {{"type", "string"}, {"format", one.format}};
        const auto quoted = [](const std::string& text) { return "\"" + text + "\""; };
        for (const std::string& text : one.good)
            EXPECT_TRUE(accepts(schema, quoted(text))) << one.format << " " << text;
        for (const std::string& text : one.bad)
            EXPECT_FALSE(accepts(schema, quoted(text))) << one.format << " " << text;
        // Whatever it is, it is JSON: no quotes, control characters or halves of escapes.
        for (uint32_t seed = 0; seed < 10; ++seed) {
            const std::string text = walk({.kind = Kind::json_schema, .text = schema.dump()}, seed, 10);
            EXPECT_TRUE(text.empty() || json::parse(text, nullptr, false).is_string()) << one.format << text;
        }
    }
    // Beside a pattern or a length it is an annotation.
    EXPECT_TRUE(accepts({{"type", "string"}, {"format", "ipv4"}, {"maxLength", 3}}, "\"abc\""));
}

TEST(Grammar, ErrorsSayWhatIsWrong) {
    const auto message = [](const OutputFormat& format) {
        try {
            compiler().compile(format);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::usage);
            return std::string(error.what());
        }
        return std::string("no error");
    };
    EXPECT_THAT(message({.kind = Kind::json_schema, .text = "{"}), HasSubstr("no valid JSON at byte 2"));
    EXPECT_THAT(message({.kind = Kind::grammar, .text = "root ::= other"}), HasSubstr("other"));
    EXPECT_THAT(message({.kind = Kind::grammar, .text = "start ::= \"a\""}), HasSubstr("root"));
    EXPECT_THAT(message({.kind = Kind::regex, .text = "(a"}), HasSubstr("regular expression"));
    EXPECT_THAT(message({.kind = Kind::regex, .text = "\\bword"}), HasSubstr("oundary"));
    EXPECT_THAT(message({.kind = Kind::choice}), HasSubstr("none"));
    EXPECT_THAT(message({.kind = Kind::grammar, .text = std::string(300000, ' ')}), HasSubstr("too many"));
    const std::string open(100000, '(');
    EXPECT_THAT(message({.kind = Kind::regex, .text = open}), HasSubstr("nested too deep"));
    EXPECT_THAT(message({.kind = Kind::grammar, .text = "root ::= " + open}), HasSubstr("nested too deep"));
    std::string deep, many = "{\"enum\":[0";
    for (int i = 0; i < 20000; ++i) deep += "{\"items\":";
    EXPECT_THAT(message({.kind = Kind::json_schema, .text = deep}), HasSubstr("nested too deep"));
    for (int i = 0; i < 9000; ++i) many += ",0";
    EXPECT_THAT(message({.kind = Kind::json_schema, .text = many + "]}"}), HasSubstr("more than 8192"));
}

// Rules that lead on and on, references in circles, and other grammars that could take a parser's whole
// stack.
TEST(Grammar, LongChainsAndCircles) {
    const auto compiled = [](const OutputFormat& format) {
        try {
            return compiler().compile(format) != nullptr;
        } catch (const Error&) {
            return false;
        }
    };
    std::string chain = "root ::= r0\n";
    for (int i = 0; i < 8000; ++i) chain += fmt::format("r{} ::= r{}\n", i, i + 1);
    compiled({.kind = Kind::grammar, .text = chain + "r8000 ::= \"a\"\n"});
    compiled({.kind = Kind::grammar, .text = "root ::= root"});
    compiled({.kind = Kind::grammar, .text = "root ::= a\na ::= b | \"x\"\nb ::= a\n"});
    compiled({.kind = Kind::json_schema, .text = R"({"$ref": "#"})"});
    compiled({.kind = Kind::json_schema, .text = R"({"anyOf": [{"$ref": "#"}, {"$ref": "#/anyOf/0"}]})"});
    std::string alternatives = "a";
    for (int i = 0; i < 50000; ++i) alternatives += "|b";
    compiled({.kind = Kind::regex, .text = alternatives});
    json definitions;
    for (int i = 0; i < 2000; ++i)
        definitions[std::to_string(i)] = {{"$ref", fmt::format("#/$defs/{}", i + 1)}};
    definitions["2000"] = {{"type", "integer"}};
    EXPECT_TRUE(compiled(
        {.kind = Kind::json_schema, .text = json{{"$defs", definitions}, {"$ref", "#/$defs/0"}}.dump()}));
}

TEST(Grammar, MaskedLogits) {
    GrammarState state(compiler().compile({.kind = Kind::choice, .choices = {"ab", "ac"}}));
    const std::vector<float> logits(kVocab, 1.0F);
    const auto masked = state.masked(logits);
    for (int32_t token = 0; token < kVocab; ++token) {
        const bool allowed = state.allows(token);
        EXPECT_EQ(std::isfinite(masked[static_cast<size_t>(token)]), allowed) << token;
        if (token < tokenizer().size() && allowed) {
            const std::string piece = tokenizer().piece(token, false);
            EXPECT_TRUE(piece == "a" || piece == "ab" || piece == "ac") << piece;
        }
    }
    EXPECT_FALSE(state.allows(tokenizer().eos().value()));
}

TEST(Grammar, ACopyGoesOnByItself) {
    GrammarState state(compiler().compile({.kind = Kind::choice, .choices = {"ab", "ac"}}));
    const auto token = [](const char* text) { return tokenizer().encode(text, false, false).front(); };
    state.accept(token("a"));
    GrammarState other = state.copy();
    other.accept(token("b"));
    EXPECT_TRUE(other.allows(tokenizer().eos().value()));
    EXPECT_TRUE(state.allows(token("c")));
    EXPECT_FALSE(state.allows(tokenizer().eos().value()));
    EXPECT_THROW(state.accept(token("z")), Error);
    other.accept(tokenizer().eos().value());
    EXPECT_TRUE(other.ended());
    EXPECT_FALSE(state.ended());
}

// Every token more can be read in ways that grow without end.
TEST(Grammar, FormatsThatTakeTooLongEndTheText) {
    GrammarState state(
        compiler().compile({.kind = Kind::regex, .text = "(((a{1,100}){1,100}){1,100}){1,100}"}));
    const int32_t token = tokenizer().encode("a", false, false).front();
    try {
        for (int i = 0; i < 10000; ++i) {
            ASSERT_TRUE(state.allows(token));
            state.accept(token);
        }
        FAIL() << "it takes no time";
    } catch (const FormatError& error) {
        EXPECT_EQ(error.code(), ErrorCode::input);
        EXPECT_THAT(error.what(), HasSubstr("takes too long"));
    }
}

TEST(Grammar, CompiledOnceWhileThereIsRoom) {
    GrammarCompiler own(tokenizer(), kVocab, 1 << 20);
    const OutputFormat first{.kind = Kind::regex, .text = "[a-z]{3}"};
    const auto grammar = own.compile(first);
    EXPECT_EQ(own.compile(first), grammar);
    OutputFormat elsewhere = first;
    elsewhere.field = "guided_regex";
    EXPECT_EQ(own.compile(elsewhere), grammar);
    GrammarCompiler none(tokenizer(), kVocab, 0);
    EXPECT_NE(none.compile(first), none.compile(first));
    EXPECT_EQ(own.compile({}), nullptr);
    EXPECT_GT(grammar->bytes(), 0U);
}

}  // namespace
}  // namespace refold
