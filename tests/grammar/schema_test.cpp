#include "grammar/schema.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"

namespace refold {
namespace {

using testing::HasSubstr;

// The keys sorted, so that only their values count.
std::string enforced(const std::string& schema) {
    return nlohmann::json(enforceable_schema(parse_schema(schema))).dump();
}

std::string refusal(const std::string& schema) {
    try {
        return "no error: " + enforced(schema);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::usage);
        return error.what();
    }
}

std::string sorted(const char* schema) { return nlohmann::json::parse(schema).dump(); }

TEST(Schema, OneTypeAndTuples) {
    EXPECT_EQ(enforced(R"({"minLength":3})"), sorted(R"({"minLength":3,"type":"string"})"));
    EXPECT_EQ(enforced(R"({"type":"integer","minLength":3,"minimum":2})"),
              sorted(R"({"type":"integer","minimum":2})"));
    EXPECT_EQ(enforced(R"({"items":[true,{"minimum":1}],"additionalItems":false})"),
              sorted(R"({"prefixItems":[{},{"minimum":1,"type":"number"}],"items":false,"type":"array"})"));
    EXPECT_EQ(enforced(R"({"type":"array","prefixItems":[{"type":"null"},false,true]})"),
              sorted(R"({"type":"array","prefixItems":[{"type":"null"}],"items":false})"));
    EXPECT_EQ(enforced(R"({"type":"array","minItems":2.0})"),
              sorted(R"({"type":"array","minItems":2,"items":true})"));
    EXPECT_EQ(enforced(R"({"multipleOf":3})"), sorted(R"({"type":"integer","multipleOf":3})"));
    EXPECT_EQ(enforced(R"({"type":["string","null"],"minLength":2})"),
              sorted(R"({"anyOf":[{"type":"string","minLength":2},{"type":"null"}]})"));
}

TEST(Schema, KeepsTheOrderOfProperties) {
    const auto out = enforceable_schema(
        parse_schema(R"({"allOf":[{"properties":{"z":true,"m":true}},{"properties":{"a":true,"m":true}}]})"));
    EXPECT_EQ(out["$defs"]["0"]["properties"].dump(), R"({"z":true,"m":true,"a":true})");
}

TEST(Schema, PartsHoldTogether) {
    EXPECT_EQ(enforced(R"({"type":"object","anyOf":[{"required":["b"]},{"properties":{"z":{},"a":{}}}]})"),
              sorted(R"({"anyOf":[{"required":["b"],"type":"object","properties":{"b":true}},
                                  {"properties":{"z":{},"a":{}},"type":"object"}]})"));
    // What one part says of others' properties, and what it forbids.
    EXPECT_EQ(
        enforced(
            R"({"properties":{"a":{"type":"integer"},"b":{}},"allOf":[{"properties":{"a":{"minimum":3},"c":{}},
                           "additionalProperties":false,"required":["a"]}]})"),
        sorted(R"({"type":"object","required":["a"],"additionalProperties":false,
                         "properties":{"a":{"$ref":"#/$defs/0"},"c":{}},"$defs":{"0":{"type":"integer","minimum":3}}})"));
    EXPECT_EQ(
        enforced(
            R"({"$ref":"#/$defs/n","maximum":5,"$defs":{"n":{"type":"integer","maximum":9,"multipleOf":4}},
                           "allOf":[{"multipleOf":6}]})"),
        sorted(R"({"type":"integer","maximum":5,"multipleOf":12})"));
    EXPECT_EQ(enforced(R"({"type":"string","enum":["a",1,"bcd"],"minLength":2})"),
              sorted(R"({"enum":["bcd"]})"));
    EXPECT_EQ(enforced(R"({"enum":[1,2,3],"anyOf":[{"minimum":2},{"const":1}]})"),
              sorted(R"({"enum":[2,3,1]})"));
    EXPECT_EQ(enforced(R"({"type":["number","null"],"allOf":[{"type":["integer","string"]}],"minimum":1})"),
              sorted(R"({"type":"integer","minimum":1})"));
    EXPECT_EQ(
        enforced(
            R"({"properties":{"a":{}},"allOf":[{"properties":{"b":{}}}],"unevaluatedProperties":false})"),
        sorted(R"({"type":"object","properties":{"a":{},"b":{}},"additionalProperties":false})"));
}

TEST(Schema, AlternativesThatExcludeEachOther) {
    // What Pydantic writes for a union with a discriminator.
    const char* kinds =
        R"("$defs":{"cat":{"type":"object","properties":{"kind":{"const":"cat"}},"required":["kind"]},
                                   "dog":{"type":"object","properties":{"kind":{"const":"dog"}},"required":["kind"]}})";
    EXPECT_EQ(
        enforced(fmt::format(R"({{"oneOf":[{{"$ref":"#/$defs/cat"}},{{"$ref":"#/$defs/dog"}}],{}}})", kinds)),
        sorted(R"({"anyOf":[{"$ref":"#/$defs/0"},{"$ref":"#/$defs/1"}],"$defs":{
                         "0":{"type":"object","properties":{"kind":{"enum":["cat"]}},"required":["kind"]},
                         "1":{"type":"object","properties":{"kind":{"enum":["dog"]}},"required":["kind"]}}})"));
    // Either of two properties, not both.
    EXPECT_EQ(
        enforced(
            R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"oneOf":[{"required":["a"]},{"required":["b"]}]})"),
        sorted(R"({"anyOf":[{"type":"object","properties":{"a":{},"c":{}},"required":["a"]},
                                  {"type":"object","properties":{"b":{},"c":{}},"required":["b"]}]})"));
    EXPECT_EQ(enforced(R"({"type":"string","oneOf":[{"minLength":2},{"maxLength":4}]})"),
              sorted(R"({"anyOf":[{"type":"string","minLength":5},{"type":"string","maxLength":1}]})"));
    EXPECT_EQ(
        enforced(R"({"oneOf":[{"type":"integer"},{"type":"string","minLength":1},{"enum":[null,""]}]})"),
        sorted(R"({"anyOf":[{"type":"integer"},{"type":"string","minLength":1},{"enum":[null,""]}]})"));
    EXPECT_THAT(refusal(R"({"oneOf":[{"type":"integer"},{"enum":[null,2]}]})"),
                HasSubstr("'oneOf' could hold"));
    // What is said elsewhere of "b" does not make both possible.
    EXPECT_EQ(
        enforced(
            R"({"type":"object","properties":{"a":{},"b":{}},"allOf":[{"oneOf":[{"required":["a"]},{"required":["b"]}]}]})"),
        sorted(R"({"anyOf":[{"type":"object","properties":{"a":{}},"required":["a"]},
                                  {"type":"object","properties":{"b":{}},"required":["b"]}]})"));
    // What follows the second alternative is not known exactly, so the first cannot be kept from it.
    EXPECT_THAT(refusal(R"({"oneOf":[{"const":2},{"oneOf":[{"type":"integer"},{"type":"number"}]}]})"),
                HasSubstr("'oneOf' could hold"));
    // With "c" evaluated by the first alternative, both hold.
    EXPECT_THAT(
        refusal(
            R"({"oneOf":[{"properties":{"a":{"const":1},"c":{}},"required":["a","c"]},{"properties":{"a":{"type":"integer"}},
                            "required":["a"]}],"unevaluatedProperties":false,"type":"object"})"),
        HasSubstr("'oneOf' could hold"));
    // Names that an alternative does not describe, and could have.
    EXPECT_THAT(
        enforced(
            R"({"oneOf":[{"type":"object","minProperties":2,"required":["x"]},{"type":"object","required":["a"]}]})"),
        testing::Not(HasSubstr(R"("additionalProperties":true)")));
    // Beside a reference nothing counts in draft 7.
    EXPECT_THAT(
        refusal(
            R"({"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"A":{"type":"object"}},"oneOf":[
        {"$ref":"#/definitions/A","properties":{"k":{"const":1}},"required":["k"]},{"$ref":"#/definitions/A","title":"B"}]})"),
        HasSubstr("exclude each other"));
    EXPECT_THAT(refusal(R"({"oneOf":[{"pattern":"a"},{"pattern":"b"}]})"), HasSubstr("'oneOf' could hold"));
    EXPECT_THAT(refusal(R"({"oneOf":[true,true]})"), HasSubstr("exclude each other"));
}

TEST(Schema, Contraries) {
    EXPECT_EQ(enforced(R"({"not":{"type":["object","array","number"]}})"),
              sorted(R"({"anyOf":[{"type":"string"},{"type":"boolean"},{"type":"null"}]})"));
    EXPECT_EQ(enforced(R"({"type":"integer","not":{"minimum":3}})"),
              sorted(R"({"type":"integer","exclusiveMaximum":3})"));
    EXPECT_EQ(enforced(R"({"type":"string","not":{"not":{"maxLength":3}}})"),
              sorted(R"({"type":"string","maxLength":3})"));
    EXPECT_EQ(enforced(R"({"type":"boolean","not":{"const":true}})"), sorted(R"({"enum":[false]})"));
    EXPECT_EQ(
        enforced(
            R"({"type":"object","properties":{"a":{},"b":{}},"not":{"required":["a"]},"additionalProperties":true})"),
        sorted(R"({"type":"object","properties":{"b":{}},"additionalProperties":false})"));
    EXPECT_EQ(
        enforced(
            R"({"type":"object","properties":{"kind":{"enum":["a","b","c"]},"n":{"type":"null"}},"required":["kind"],
                           "if":{"properties":{"kind":{"const":"a"}}},"then":{"required":["n"]},"else":{"properties":{"n":false}}})"),
        sorted(
            R"({"anyOf":[{"type":"object","required":["kind","n"],"properties":{"kind":{"$ref":"#/$defs/0"},"n":{"type":"null"}}},
                                  {"type":"object","required":["kind"],"properties":{"kind":{"$ref":"#/$defs/1"}}}],
                         "$defs":{"0":{"enum":["a"]},"1":{"enum":["b","c"]}}})"));
    EXPECT_EQ(enforced(R"({"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]}})"),
              sorted(R"({"anyOf":[{"type":"object","properties":{"a":{},"b":{}},"required":["a","b"]},
                                  {"type":"object","properties":{"b":{}}}]})"));
}

// What could be written twice, or have the name of a property.
TEST(Schema, NamesOfProperties) {
    EXPECT_EQ(
        enforced(
            R"({"propertyNames":{"enum":["a","b"]},"properties":{"a":{"type":"null"},"c":{}},"minProperties":2})"),
        sorted(
            R"({"type":"object","properties":{"a":{"type":"null"},"b":true},"additionalProperties":false,"minProperties":2})"));
    EXPECT_EQ(
        enforced(
            R"({"propertyNames":{"maxLength":2},"properties":{"ab":{},"abc":{}},"additionalProperties":false})"),
        sorted(R"({"type":"object","properties":{"ab":{}},"additionalProperties":false})"));
    EXPECT_EQ(enforced(R"({"type":"object","propertyNames":false})"),
              sorted(R"({"type":"object","properties":{},"additionalProperties":false})"));
    EXPECT_THAT(
        refusal(R"({"propertyNames":{"enum":["a"]},"minProperties":1,"dependentSchemas":{"a":false}})"),
        HasSubstr("fewer properties"));
    EXPECT_THAT(refusal(R"({"propertyNames":{"maxLength":2},"properties":{"ab":{}}})"),
                HasSubstr("'propertyNames' beside"));
    EXPECT_THAT(refusal(R"({"propertyNames":{"maxLength":2},"minProperties":2})"),
                HasSubstr("'minProperties'"));
    EXPECT_EQ(
        enforced(R"({"properties":{"a":{}},"required":["a"],"minProperties":2})"),
        sorted(
            R"({"type":"object","properties":{"a":{}},"required":["a"],"minProperties":2,"additionalProperties":true})"));
}

// What XGrammar does with such schemas is not what they say.
TEST(Schema, AroundXgrammar) {
    // It would take both for the same.
    const std::string titles =
        enforced(R"({"anyOf":[{"type":"object","properties":{"title":{"type":"string"}}},
                                                     {"type":"object","properties":{"title":{"type":"null"}}}]})");
    EXPECT_THAT(titles, HasSubstr(R"("x-other":0)"));
    EXPECT_THAT(titles, HasSubstr(R"("x-other":1)"));
    EXPECT_THAT(enforced(R"({"items":{"const":{"a":{"default":1}}}})"), HasSubstr("x-other"));
    EXPECT_EQ(enforced(R"({"type":"string","format":"date","pattern":"^x"})"),
              sorted(R"({"type":"string","pattern":"^x"})"));
    EXPECT_EQ(enforced(R"({"type":"string","format":"uri","maxLength":9})"),
              sorted(R"({"type":"string","maxLength":9})"));
    EXPECT_EQ(enforced(R"({"type":"integer","exclusiveMinimum":0.5,"maximum":2.5,"multipleOf":1})"),
              sorted(R"({"type":"integer","exclusiveMinimum":0,"maximum":2})"));
    EXPECT_EQ(enforced(R"({"type":"integer","minimum":0.5,"exclusiveMaximum":2.5})"),
              sorted(R"({"type":"integer","minimum":1,"exclusiveMaximum":3})"));
    EXPECT_EQ(enforced(R"({"enum":[5],"multipleOf":5,"nullable":true,"x-order":1})"),
              sorted(R"({"enum":[5]})"));
    for (const char* pattern : {R"(^\"$)", R"(a\\\\d)", R"(\\n)", R"(^é$)", R"(\\u0041)"})
        EXPECT_THAT(refusal(fmt::format(R"({{"pattern":"{}"}})", pattern)),
                    HasSubstr("'pattern' with quotes"))
            << pattern;
    EXPECT_EQ(enforced(R"({"pattern":"^[^\"\\\\]+\\s\\.$"})"),
              sorted(R"({"type":"string","pattern":"^[^\"\\\\]+\\s\\.$"})"));
    for (const char* name : {"größe", R"(a\"b)", "a/b"})
        EXPECT_THAT(
            refusal(fmt::format(R"({{"properties":{{"{}":{{}}}},"additionalProperties":true}})", name)),
            HasSubstr("beside the name"));
    EXPECT_THAT(refusal(R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1e-06})"),
                HasSubstr("so close"));
    EXPECT_THAT(refusal(R"({"type":"number","minimum":9007199254740993})"), HasSubstr("so large"));
    EXPECT_THAT(refusal(R"({"const":12345678901234567890})"), HasSubstr("more digits"));
    EXPECT_THAT(refusal(R"({"enum":[-9223372036854775808],"multipleOf":18446744073709551615})"),
                HasSubstr("'multipleOf' beside"));
}

TEST(Schema, References) {
    const std::string kinds =
        R"("definitions":{"a/b":{"type":"null"},"list":[{"type":"string"}],"deep":{"$id":"other.json",
        "definitions":{"x":{"type":"boolean"}},"items":{"$ref":"#/definitions/x"}},"named":{"$anchor":"here","type":"integer"}})";
    const auto leads = [&](const char* reference) {
        return nlohmann::json::parse(enforced(fmt::format(
            R"({{"$id":"http://a.b/root.json","items":{{"$ref":"{}"}},{}}})", reference, kinds)))["$defs"];
    };
    EXPECT_EQ(leads("#/definitions/a~1b")["0"].dump(), R"({"type":"null"})");
    EXPECT_EQ(leads("#/definitions/list/0")["0"].dump(), R"({"type":"string"})");
    EXPECT_EQ(leads("#here")["0"].dump(), R"({"type":"integer"})");
    EXPECT_EQ(leads("root.json#here")["0"].dump(), R"({"type":"integer"})");
    EXPECT_EQ(leads("http://a.b/other.json")["0"].dump(), R"({"items":{"$ref":"#/$defs/1"},"type":"array"})");
    EXPECT_EQ(leads("other.json")["1"].dump(), R"({"type":"boolean"})");
    EXPECT_THAT(refusal(R"({"$ref":"#/$defs/none"})"), HasSubstr("there is no #/$defs/none"));
    EXPECT_THAT(refusal(R"({"$ref":"else.json"})"), HasSubstr("another document: else.json"));
    EXPECT_THAT(refusal(R"({"properties":{"a":{"$ref":3}}})"),
                HasSubstr("#/properties/a: '$ref' is not a text"));
}

// Both trees lead to themselves, and so does what is both.
TEST(Schema, PartsThatLeadToThemselvesEnd) {
    const std::string out = enforced(R"({"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{
        "a":{"type":"object","properties":{"next":{"$ref":"#/$defs/a"},"x":{"type":"null"}}},
        "b":{"type":"object","properties":{"next":{"$ref":"#/$defs/b"},"y":{"type":"null"}}}}})");
    EXPECT_EQ(out, sorted(R"({"$ref":"#/$defs/0","$defs":{"0":{"type":"object","properties":
                              {"next":{"$ref":"#/$defs/0"},"x":{"type":"null"},"y":{"type":"null"}}}}})"));
    EXPECT_THAT(refusal(R"({"allOf":[{"$ref":"#"},{"minimum":1}]})"), HasSubstr("without an end"));
    EXPECT_THAT(refusal(R"({"not":{"$ref":"#"}})"), HasSubstr("without an end"));
}

TEST(Schema, WhatTakesTooLongIsRefused) {
    std::string both;
    for (int i = 0; i < 12; ++i)
        both += fmt::format(R"({}{{"anyOf":[{{"required":["a{}"]}},{{"required":["b{}"]}}]}})",
                            i > 0 ? "," : "", i, i);
    EXPECT_THAT(refusal(R"({"type":"object","allOf":[)" + both + "]}"),
                HasSubstr("more than 64 combinations"));
    std::string nested = R"({"const":1})", properties;
    for (int i = 0; i < 20; ++i)
        nested = fmt::format(R"({{"not":{{"properties":{{"a":{},"b":true}},"required":["b"]}}}})", nested);
    refusal(nested);  // in time
    for (int i = 0; i < 150; ++i)
        properties += fmt::format(R"({}"p{}":{{"type":"integer"}})", i > 0 ? "," : "", i);
    std::string many;
    for (int i = 0; i < 12; ++i)
        many += fmt::format(R"({}{{"properties":{{{}}}}})", i > 0 ? "," : "", properties);
    EXPECT_THAT(refusal(R"({"allOf":[)" + many + "]}"), HasSubstr("no error"));
}

TEST(Schema, WhatCannotBeEnforcedIsRefusedWithItsPlace) {
    const auto refused = [](const char* schema, const char* why) {
        EXPECT_THAT(refusal(schema), HasSubstr(why));
    };
    refused(R"({"not":{"pattern":"a"}})", "#: 'not' cannot be enforced");
    refused(R"({"properties":{"a":{"type":"string","not":{"const":"b"}}}})",
            "#/properties/a: 'not' cannot be enforced");
    refused(R"({"items":{"uniqueItems":true}})", "#/items: 'uniqueItems' cannot be enforced");
    refused(R"({"contains":{"const":1}})", "'contains'");
    refused(R"({"enum":["a"],"pattern":"a"})", "'pattern' beside 'enum'");
    refused(R"({"pattern":"a","allOf":[{"pattern":"b"}]})", "two different 'pattern'");
    refused(R"({"patternProperties":{"a":{}},"allOf":[{"properties":{"a":{}}}]})", "'patternProperties'");
    refused(R"({"minProperties":2,"additionalProperties":true})", "'minProperties'");
    refused(R"({"if":{"pattern":"a"},"then":{"minLength":3}})", "#: the contrary of 'if'");
    refused(R"({"not":{"not":{"properties":{"a":{}}}},"unevaluatedProperties":false})",
            "'not' cannot be enforced");
    refused(R"({"required":["a"],"additionalProperties":false})",
            "#/properties/a: no document can follow it: it is required");
    refused(R"({"type":"integer","minimum":3,"maximum":2})", "'minimum' is above 'maximum'");
    refused(R"({"type":"string","anyOf":[{"type":"integer"}]})", "exclude each other");
    refused("false", "");
    for (const char* bad :
         {R"({"required":"a"})", R"({"required":[1]})", R"({"properties":[]})", R"({"type":3})",
          R"({"minLength":-1})", R"({"maxItems":1.5})", R"({"enum":3})", R"({"minimum":"a"})",
          R"({"pattern":1})", R"({"multipleOf":3,"allOf":[{"multipleOf":0}]})", R"({"multipleOf":-1})"})
        refused(bad, "expected");
    for (const char* bad : {R"({"anyOf":3})", R"({"oneOf":[]})", R"({"allOf":{}})"})
        refused(bad, "is not a list of schemas");
    refused(R"({"items":3})", "#/items: a schema is an object");
    refused(R"({"properties":{"a":3}})", "#/properties/a: a schema is an object");
}

}  // namespace
}  // namespace refold
