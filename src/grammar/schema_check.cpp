#include "grammar/schema_check.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/error.h"

namespace refold {
namespace {

using nlohmann::json;
using Words = std::set<std::string, std::less<>>;

const Words kAnnotations = {"$schema",
                            "$comment",
                            "$defs",
                            "$id",
                            "definitions",
                            "title",
                            "description",
                            "default",
                            "examples",
                            "deprecated",
                            "readOnly",
                            "writeOnly",
                            "contentMediaType",
                            "discriminator",
                            "strict",
                            "contentEncoding",
                            "format"};
// The first of these that a schema has is the only one that is enforced.
constexpr std::array kHeads = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
const Words kOfString = {"minLength", "maxLength", "pattern"};
const Words kOfNumber = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
const Words kOfArray = {"items", "prefixItems", "unevaluatedItems", "minItems", "maxItems"};
const Words kOfObject = {
    "properties",        "required",      "additionalProperties", "unevaluatedProperties",
    "patternProperties", "propertyNames", "minProperties",        "maxProperties"};
// Without `type`, these say which one is meant.
constexpr std::array kImplyArray = {"items", "prefixItems", "unevaluatedItems"};
constexpr std::array kImplyObject = {"properties", "additionalProperties", "unevaluatedProperties"};

[[noreturn]] void refuse(const std::string& place, const std::string& reason) {
    fail(ErrorCode::usage, "schema", "{}: {}", place.empty() ? "#" : "#" + place, reason);
}

bool is_of_type(const json& value, const std::string& type) {
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "array") return value.is_array();
    return type == "object" && value.is_object();
}

std::vector<std::string> types_of(const json& schema, const std::string& place) {
    const auto found = schema.find("type");
    std::vector<std::string> types;
    if (found == schema.end()) return types;
    for (const json& type : found->is_array() ? *found : json::array({*found})) {
        if (!type.is_string()) refuse(place, "'type' must be a name or a list of names");
        types.push_back(type);
    }
    return types;
}

void check_head(const json& schema, const std::string& head, const std::string& place) {
    const auto types = types_of(schema, place);
    const bool values = head == "const" || head == "enum";
    for (const auto& [key, value] : schema.items()) {
        if (key == head || kAnnotations.contains(key) || (key == "type" && values)) continue;
        refuse(place, fmt::format("'{}' beside '{}' would not be enforced - put it into each alternative, or "
                                  "leave it out",
                                  key, head));
    }
    if (!values || types.empty()) return;
    const json& given = schema[head];
    for (const json& value : head == "enum" ? given : json::array({given})) {
        if (std::none_of(types.begin(), types.end(),
                         [&](const auto& type) { return is_of_type(value, type); }))
            refuse(place, fmt::format("'{}' has {}, which is not of the type", head, value.dump()));
    }
}

// The keywords that are enforced for the types of a schema without a head.
Words enforced(const json& schema, const std::string& place) {
    auto types = types_of(schema, place);
    const auto has = [&](const char* key) { return schema.contains(key); };
    if (types.empty() && std::any_of(kImplyObject.begin(), kImplyObject.end(), has)) types = {"object"};
    if (types.empty() && std::any_of(kImplyArray.begin(), kImplyArray.end(), has)) types = {"array"};
    Words out;
    for (const std::string& type : types) {
        if (type == "string") out.insert(kOfString.begin(), kOfString.end());
        if (type == "integer" || type == "number") out.insert(kOfNumber.begin(), kOfNumber.end());
        if (type == "array") out.insert(kOfArray.begin(), kOfArray.end());
        if (type == "object") out.insert(kOfObject.begin(), kOfObject.end());
    }
    return out;
}

bool is_of_some_type(const std::string& key) {
    return kOfString.contains(key) || kOfNumber.contains(key) || kOfArray.contains(key) ||
           kOfObject.contains(key);
}

void check_keywords(const json& schema, const std::string& place) {
    const Words known = enforced(schema, place);
    const bool typed = schema.contains("type") || !known.empty();
    for (const auto& [key, value] : schema.items()) {
        if (key == "type" || known.contains(key) || kAnnotations.contains(key)) continue;
        if (key == "uniqueItems" && value == false) continue;
        // Keywords of types that are not generated hold of themselves.
        if (is_of_some_type(key) && typed) continue;
        if (is_of_some_type(key))
            refuse(place, fmt::format("'{}' needs a 'type' beside it to be enforced", key));
        refuse(place, fmt::format("'{}' cannot be enforced", key));
    }
}

void check_at(const json& schema, const std::string& place) {
    if (!schema.is_object()) return;  // true, false, or an error that compiling reports
    const auto head =
        std::find_if(kHeads.begin(), kHeads.end(), [&](const char* key) { return schema.contains(key); });
    if (head != kHeads.end()) {
        check_head(schema, *head, place);
    } else {
        check_keywords(schema, place);
    }
    for (const char* key :
         {"items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames"}) {
        if (schema.contains(key)) check_at(schema[key], fmt::format("{}/{}", place, key));
    }
    for (const char* key : {"properties", "patternProperties", "$defs", "definitions"}) {
        if (!schema.contains(key) || !schema[key].is_object()) continue;
        for (const auto& [name, part] : schema[key].items())
            check_at(part, fmt::format("{}/{}/{}", place, key, name));
    }
    for (const char* key : {"anyOf", "oneOf", "allOf", "prefixItems"}) {
        if (!schema.contains(key) || !schema[key].is_array()) continue;
        size_t i = 0;
        for (const json& part : schema[key]) check_at(part, fmt::format("{}/{}/{}", place, key, i++));
    }
}

}  // namespace

void check_schema(const json& schema) {
    if (!schema.is_object() && !schema.is_boolean())
        fail(ErrorCode::usage, "schema", "a JSON Schema is an object, got {}", schema.type_name());
    check_at(schema, "");
}

}  // namespace refold
