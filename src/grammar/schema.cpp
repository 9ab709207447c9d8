#include "grammar/schema.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using Words = std::set<std::string, std::less<>>;

const Words kAnnotations = {
    "$schema",          "$comment",      "$defs",    "$id",        "definitions",    "title",
    "description",      "default",       "examples", "deprecated", "readOnly",       "writeOnly",
    "contentMediaType", "discriminator", "strict",   "format",     "contentEncoding"};
// The first of these that a schema has is the only one that XGrammar looks at.
constexpr std::array kHeads = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

struct TypeWords {
    const char* type;
    Words keywords;
};
const std::vector<TypeWords> kTypes = {
    {"object",
     {"properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties",
      "propertyNames", "minProperties", "maxProperties"}},
    {"array", {"items", "prefixItems", "unevaluatedItems", "minItems", "maxItems"}},
    {"string", {"minLength", "maxLength", "pattern"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
};

// Counts before anything is built: ordered_json searches an object for every key that it gets, and what reads
// schemas calls itself level by level.
class Counter : public nlohmann::json_sax<Json> {
public:
    const char* problem() const { return problem_; }

    bool null() override { return count(); }
    bool boolean(bool) override { return count(); }
    bool number_integer(number_integer_t) override { return count(); }
    bool number_unsigned(number_unsigned_t) override { return count(); }
    bool number_float(number_float_t, const string_t&) override { return count(); }
    bool string(string_t&) override { return count(); }
    bool binary(binary_t&) override { return false; }
    bool start_object(size_t) override { return begin(); }
    bool start_array(size_t) override { return begin(); }
    bool end_object() override { return --depth_ >= 0; }
    bool end_array() override { return --depth_ >= 0; }
    bool key(string_t&) override { return count(); }
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
        return false;
    }

private:
    bool count() {
        constexpr size_t kMost = 8192;
        if (++values_ > kMost) problem_ = "it has more than 8192 values";
        return values_ <= kMost;
    }
    bool begin() {
        constexpr int kDeepest = 64;
        if (++depth_ > kDeepest) problem_ = "it is nested too deep";
        return depth_ <= kDeepest && count();
    }

    const char* problem_ = "it is not JSON";
    size_t values_ = 0;
    int depth_ = 0;
};

[[noreturn]] void refuse(const std::string& place, const std::string& reason) {
    fail(ErrorCode::usage, "schema", "#{}: {}", place, reason);
}

bool is_of_type(const Json& value, const std::string& type) {
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "array") return value.is_array();
    return type == "object" && value.is_object();
}

Json list_of(const Json& value) { return value.is_array() ? value : Json::array({value}); }

// {"type": T, "anyOf": [...]}: the alternatives get the type.
void push_type_down(Json& schema, const std::string& head, const std::string& place) {
    if (!schema[head].is_array()) return;
    for (Json& alternative : schema[head]) {
        if (!alternative.is_object()) continue;
        const bool headed = std::any_of(kHeads.begin(), kHeads.end(),
                                        [&](const char* key) { return alternative.contains(key); });
        if (headed || (alternative.contains("type") && alternative["type"] != schema["type"]))
            refuse(
                place,
                fmt::format("'type' beside '{}' would not be enforced - put it into each alternative", head));
        alternative["type"] = schema["type"];
    }
    schema.erase("type");
}

void check_head(Json& schema, const std::string& head, const std::string& place) {
    const bool values = head == "const" || head == "enum";
    if (schema.contains("type") && (head == "anyOf" || head == "oneOf")) push_type_down(schema, head, place);
    for (const auto& [key, value] : schema.items()) {
        if (key == head || kAnnotations.contains(key) || (key == "type" && values)) continue;
        refuse(place,
               fmt::format(
                   "'{}' beside '{}' would not be enforced - put it into each alternative, or leave it out",
                   key, head));
    }
    if (!values || !schema.contains("type")) return;
    const Json types = list_of(schema["type"]);
    for (const Json& value : head == "enum" ? list_of(schema[head]) : Json::array({schema[head]})) {
        const bool fits = std::any_of(types.begin(), types.end(), [&](const Json& type) {
            return type.is_string() && is_of_type(value, type.get<std::string>());
        });
        if (!fits) refuse(place, fmt::format("'{}' has {}, which is not of the type", head, value.dump()));
    }
}

// Draft 7's items of a tuple. Values are copied before the object grows, which moves them.
void rewrite_tuple(Json& schema) {
    const Json items = schema.value("items", Json()), others = schema.value("additionalItems", Json());
    schema.erase("additionalItems");  // says nothing of other arrays
    if (!items.is_array()) return;
    schema.erase("items");
    schema["prefixItems"] = items;
    if (!others.is_null()) schema["items"] = others;
}

// Keys that two parts of a schema may speak of would get the one's values only.
void check_patterns(const Json& schema, const std::string& place) {
    if (!schema.contains("patternProperties")) return;
    const bool alone = schema["patternProperties"].size() < 2 && schema.value("properties", Json()).empty() &&
                       schema.value("additionalProperties", Json(false)) == false;
    if (!alone)
        refuse(place,
               "'patternProperties' is enforced only for one pattern, and without 'properties' and "
               "'additionalProperties'");
}

// Names that are required get a property: XGrammar forgets others.
void add_required(Json& schema, const std::string& place) {
    if (!schema.contains("required") || !schema["required"].is_array()) return;
    const Json required = schema["required"];
    for (const Json& name : required) {
        if (!name.is_string() ||
            (schema.contains("properties") && schema["properties"].contains(name.get<std::string>())))
            continue;
        const Json others = schema.value("additionalProperties", Json(true));
        if (others == false || schema.contains("patternProperties") || schema.contains("propertyNames") ||
            schema.contains("unevaluatedProperties"))
            refuse(place, fmt::format("'required' has {}, which 'properties' does not say", name.dump()));
        schema["properties"][name.get<std::string>()] = others;
    }
}

bool is_number(const Json& type) { return type == "number" || type == "integer"; }

void check_keywords(Json& schema, const std::string& place) {
    rewrite_tuple(schema);
    if (schema.value("uniqueItems", Json()) == false) schema.erase("uniqueItems");
    const auto type_of = [](const std::string& key) {
        return std::find_if(kTypes.begin(), kTypes.end(),
                            [&](const TypeWords& t) { return t.keywords.contains(key); });
    };
    if (!schema.contains("type")) {
        for (const auto& [key, value] : schema.items()) {
            if (type_of(key) == kTypes.end()) continue;
            schema["type"] = type_of(key)->type;
            break;
        }
    }
    std::vector<std::string> others;  // keywords of types that are not generated hold of themselves
    for (const auto& [key, value] : schema.items()) {
        if (key == "type" || kAnnotations.contains(key)) continue;
        const auto of = type_of(key);
        if (of == kTypes.end()) refuse(place, fmt::format("'{}' cannot be enforced", key));
        const Json types = list_of(schema["type"]);
        const bool meant = std::any_of(types.begin(), types.end(), [&](const Json& type) {
            return type == of->type || (is_number(type) && of->keywords.contains("minimum"));
        });
        if (!meant) others.push_back(key);
    }
    for (const std::string& key : others) schema.erase(key);
    check_patterns(schema, place);
    add_required(schema, place);
}

Json enforceable(Json schema, const std::string& place) {
    if (!schema.is_object()) return schema;  // true, false, or an error that compiling reports
    const auto head =
        std::find_if(kHeads.begin(), kHeads.end(), [&](const char* key) { return schema.contains(key); });
    if (head != kHeads.end()) {
        check_head(schema, *head, place);
    } else {
        check_keywords(schema, place);
    }
    for (const char* key :
         {"items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames"}) {
        if (schema.contains(key)) schema[key] = enforceable(schema[key], fmt::format("{}/{}", place, key));
    }
    for (const char* key : {"properties", "patternProperties", "$defs", "definitions"}) {
        if (!schema.contains(key) || !schema[key].is_object()) continue;
        for (auto& [name, part] : schema[key].items())
            part = enforceable(part, fmt::format("{}/{}/{}", place, key, name));
    }
    for (const char* key : {"anyOf", "oneOf", "allOf", "prefixItems"}) {
        if (!schema.contains(key) || !schema[key].is_array()) continue;
        size_t i = 0;
        for (Json& part : schema[key]) part = enforceable(part, fmt::format("{}/{}/{}", place, key, i++));
    }
    return schema;
}

}  // namespace

nlohmann::ordered_json parse_schema(const std::string& text) {
    Counter counter;
    if (!Json::sax_parse(text, &counter)) fail(ErrorCode::usage, "schema", "{}", counter.problem());
    return Json::parse(text);
}

nlohmann::ordered_json enforceable_schema(const nlohmann::ordered_json& schema) {
    if (!schema.is_object() && !schema.is_boolean())
        fail(ErrorCode::usage, "schema", "a JSON Schema is an object, got {}", schema.type_name());
    return enforceable(schema, "");
}

}  // namespace refold
