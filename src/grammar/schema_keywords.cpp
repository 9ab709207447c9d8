#include "grammar/schema_keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "core/error.h"

namespace refold {
namespace {

// Keywords that speak of values of one type only.
struct OfType {
    const char* type;
    std::vector<std::string_view> keywords;
};
const std::array<OfType, 4> kOfTypes{{
    {"object",
     {"properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties",
      "propertyNames", "minProperties", "maxProperties"}},
    {"array",
     {"items", "prefixItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems", "contains"}},
    {"string", {"minLength", "maxLength", "pattern"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
}};

bool contains(const std::vector<std::string>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

void merge_items(Schema& a, const Schema& b) {
    if (!b.contains("items") && !b.contains("prefixItems")) return;
    Schema first = Schema::array();
    const size_t n = std::max(part(a, "prefixItems", kNone).size(), part(b, "prefixItems", kNone).size());
    for (size_t i = 0; i < n; ++i) first.push_back(all_of(item_at(a, i), item_at(b, i)));
    const bool bounded = a.contains("items") || b.contains("items");
    const Schema others = all_of(part(a, "items", kAny), part(b, "items", kAny));
    if (n > 0) a["prefixItems"] = first;
    if (bounded) a["items"] = others;
}

void merge_properties(Schema& a, const Schema& b, const std::string& place) {
    const auto speaks = [](const Schema& s) {
        return s.contains("properties") || s.contains("additionalProperties") ||
               s.contains("patternProperties");
    };
    if (!speaks(b)) return;
    if (speaks(a) && (a.contains("patternProperties") || b.contains("patternProperties")))
        refuse_schema(place,
                      "'patternProperties' of one part cannot be enforced beside properties of another");
    if (b.contains("patternProperties")) a["patternProperties"] = b["patternProperties"];
    const Schema& of_a = part(a, "properties", kEmpty);
    const Schema& of_b = part(b, "properties", kEmpty);
    const Schema& others_a = part(a, "additionalProperties", kAny);
    const Schema& others_b = part(b, "additionalProperties", kAny);
    Schema out = Schema::object();
    for (const auto& [name, one] : of_a.items())
        out[name] = all_of(one, of_b.contains(name) ? of_b[name] : others_b);
    for (const auto& [name, one] : of_b.items())
        if (!of_a.contains(name)) out[name] = all_of(others_a, one);
    const bool bounded = a.contains("additionalProperties") || b.contains("additionalProperties");
    const Schema others = all_of(others_a, others_b);
    if (!out.empty()) a["properties"] = out;
    if (bounded) a["additionalProperties"] = others;
}

// A keyword that both parts have. What is not known here stays, to be refused later.
Schema both(const std::string& key, const Schema& a, const Schema& b, const std::string& place) {
    if (key == "required" || key == "enum") {
        const bool either = key == "required";
        const std::set<nlohmann::json> of_a(a.begin(), a.end()), of_b(b.begin(), b.end());
        Schema out = either ? a : Schema::array();
        for (const Schema& value : either ? b : a)
            if (either ? !of_a.contains(value) : of_b.contains(value)) out.push_back(value);
        return out;
    }
    if (key == "not") return {{"anyOf", Schema::array({a, b})}};
    if (key == "propertyNames") return all_of(a, b);
    if (key == "uniqueItems") return a == true || b == true;
    if (a.is_number() && b.is_number()) {
        if (key.starts_with("min") || key == "exclusiveMinimum") return a < b ? b : a;
        if (key.starts_with("max") || key == "exclusiveMaximum") return a < b ? a : b;
        if (key == "multipleOf" && a.is_number_unsigned() && b.is_number_unsigned()) {
            const auto x = a.get<uint64_t>(), y = b.get<uint64_t>(), common = std::gcd(x, y);
            if (common > 0 && x / common <= std::numeric_limits<int32_t>::max() / y) return x / common * y;
        }
    }
    if (!equal(a, b))
        refuse_schema(place,
                      fmt::format("two different '{}' hold at the same time, which cannot be enforced", key));
    return a;
}

bool is_count(const std::string& key) {
    return key == "minLength" || key == "maxLength" || key == "minItems" || key == "maxItems" ||
           key == "minProperties" || key == "maxProperties";
}

}  // namespace

void refuse_schema(const std::string& place, const std::string& reason) {
    fail(ErrorCode::usage, "schema", "#{}: {}", place, reason);
}

bool is_annotation(std::string_view key) {
    static constexpr std::array kAnnotations = {
        "$schema",       "$comment",         "$defs",         "$id",
        "$anchor",       "definitions",      "title",         "description",
        "default",       "example",          "examples",      "readOnly",
        "writeOnly",     "contentMediaType", "discriminator", "strict",
        "contentSchema", "contentEncoding",  "format",        "deprecated",
        "$vocabulary",   "$dynamicAnchor",   "xml",           "externalDocs",
        "nullable"};
    return key.starts_with("x-") ||
           std::find(kAnnotations.begin(), kAnnotations.end(), key) != kAnnotations.end();
}

Schema all_of(const Schema& a, const Schema& b) {
    if (a == true || equal(a, b)) return b;
    if (b == true) return a;
    if (a == false || b == false) return false;
    const auto parts = [](const Schema& s) {
        return s.is_object() && s.size() == 1 && s.contains("allOf") && s["allOf"].is_array()
                   ? Schema(s["allOf"])
                   : Schema::array({s});
    };
    Schema out = parts(a);
    for (const Schema& part : parts(b))
        if (!has(out, part)) out.push_back(part);
    return {{"allOf", out}};
}

std::vector<std::string> types_of(const Schema& keywords) {
    if (!keywords.contains("type")) return {"object", "array", "string", "number", "boolean", "null"};
    const Schema& types = keywords["type"];
    std::vector<std::string> out;
    for (const Schema& type : types.is_array() ? types : Schema::array({types}))
        if (type.is_string()) out.push_back(type.get<std::string>());
    return out;
}

const char* implied_type(const Schema& keywords) {
    for (const auto& [key, value] : keywords.items()) {
        for (const OfType& of : kOfTypes)
            if (std::find(of.keywords.begin(), of.keywords.end(), key) != of.keywords.end()) return of.type;
    }
    return nullptr;
}

bool is_of_type(const Schema& value, const std::string& type) {
    if (type == "integer")
        return value.is_number_integer() ||
               (value.is_number() && std::trunc(value.get<double>()) == value.get<double>());
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "array") return value.is_array();
    return type == "object" && value.is_object();
}

bool equal(const Schema& a, const Schema& b) {
    return a == b || (a.is_structured() && b.is_structured() && nlohmann::json(a) == nlohmann::json(b));
}

bool has(const Schema& values, const Schema& value) {
    return std::any_of(values.begin(), values.end(), [&](const Schema& v) { return equal(v, value); });
}

const Schema& part(const Schema& keywords, const char* key, const Schema& otherwise) {
    const auto at = keywords.find(key);
    return at == keywords.end() ? otherwise : *at;
}

const Schema& item_at(const Schema& keywords, size_t i) {
    const Schema& first = part(keywords, "prefixItems", kNone);
    return i < first.size() ? first[i] : part(keywords, "items", kAny);
}

size_t n_keywords(const Schema& schema) {
    size_t out = 0;
    for (const auto& [key, value] : schema.items()) out += is_annotation(key) ? 0 : 1;
    return out;
}

size_t n_values(const Schema& value) {
    size_t out = 1;
    if (value.is_structured())
        for (const Schema& one : value) out += n_values(one);
    return out;
}

std::vector<std::string> common_types(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    std::vector<std::string> out;
    for (const std::string& type : a) {
        if (contains(b, type) || (type == "integer" && contains(b, "number"))) {
            out.push_back(type);
        } else if (type == "number" && contains(b, "integer")) {
            out.emplace_back("integer");
        }
    }
    return out;
}

std::vector<std::string> narrow_types_of(const Schema& keywords) {
    const char* implied = keywords.contains("type") ? nullptr : implied_type(keywords);
    return implied == nullptr ? types_of(keywords) : std::vector<std::string>{implied};
}

// Values are copied before the object grows, which moves them.
void rename_tuple(Schema& schema) {
    const Schema items = schema.value("items", Schema()), others = schema.value("additionalItems", Schema());
    schema.erase("additionalItems");  // says nothing of other arrays
    if (!items.is_array()) return;
    schema.erase("items");
    schema["prefixItems"] = items;
    if (!others.is_null()) schema["items"] = others;
}

void check_kinds(Schema& keywords, const std::string& place) {
    const auto texts = [](const Schema& value) {
        return value.is_array() &&
               std::all_of(value.begin(), value.end(), [](const Schema& v) { return v.is_string(); });
    };
    const auto is = [&](const std::string& key, const Schema& value) -> const char* {
        if (key == "type") return value.is_string() || texts(value) ? nullptr : "a type or a list of them";
        if (key == "required") return texts(value) ? nullptr : "a list of names";
        if (key == "enum" || key == "prefixItems") return value.is_array() ? nullptr : "a list";
        if (key == "properties" || key == "patternProperties")
            return value.is_object() ? nullptr : "an object of schemas";
        if (key == "pattern") return value.is_string() ? nullptr : "a text";
        if (key == "multipleOf")
            return value.is_number() && value.get<double>() > 0 ? nullptr : "a number above 0";
        if (is_count(key))
            return value.is_number() && value >= 0 && value < 1e9 && is_of_type(value, "integer")
                       ? nullptr
                       : "a number of them";
        const bool number = key == "minimum" || key == "maximum" || key.starts_with("exclusiveM");
        return !number || value.is_number() ? nullptr : "a number";
    };
    for (auto& [key, value] : keywords.items()) {
        if (const char* kind = is(key, value))
            refuse_schema(place, fmt::format("'{}' is {}, expected {}", key, value.dump(), kind));
        if (is_count(key)) value = static_cast<int64_t>(value.get<double>());
    }
}

std::optional<Schema> merged(Schema a, const Schema& b, const std::string& place) {
    merge_items(a, b);
    merge_properties(a, b, place);
    for (const auto& [key, value] : b.items()) {
        if (key == "items" || key == "prefixItems" || key == "properties" || key == "additionalProperties" ||
            key == "patternProperties" || key == "type")
            continue;
        a[key] = a.contains(key) ? both(key, Schema(a[key]), value, place) : value;
    }
    if (b.contains("type"))
        a["type"] = a.contains("type") ? Schema(common_types(types_of(a), types_of(b))) : b["type"];
    if (a.contains("type") && a["type"].is_array() && a["type"].size() == 1) a["type"] = Schema(a["type"][0]);
    const bool none = (a.contains("type") && a["type"].empty()) || (a.contains("enum") && a["enum"].empty());
    return none ? std::nullopt : std::optional(std::move(a));
}

Schema beyond(const Schema& a, const Schema& b) {
    Schema out = Schema::object();
    for (const auto& [key, value] : b.items()) {
        const Schema& own = part(a, key.c_str(), kNone);
        if (equal(own, value)) continue;
        if (key == "required") {
            out[key] = Schema::array();
            for (const Schema& name : value)
                if (!has(own, name)) out[key].push_back(name);
        } else if (key == "properties") {
            out[key] = Schema::object();
            for (const auto& [name, one] : value.items())
                if (!own.contains(name) || !equal(own[name], one)) out[key][name] = one;
        } else {
            out[key] = value;
        }
    }
    return out;
}

}  // namespace refold
