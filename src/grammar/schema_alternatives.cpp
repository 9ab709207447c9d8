#include "grammar/schema_alternatives.h"

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

constexpr int kMostLevels = 64;        // references and alternatives within each other
constexpr int kDeepestProof = 4;       // properties of properties that tell alternatives apart
constexpr size_t kMostSteps = 500000;  // values looked at or copied: some tenths of a second
constexpr size_t kMostAlternatives = 256;

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

struct Bounds {
    const char* type;
    const char* least;
    const char* most;
};
constexpr std::array kBounds{
    Bounds{"number", "minimum", "maximum"}, Bounds{"string", "minLength", "maxLength"},
    Bounds{"array", "minItems", "maxItems"}, Bounds{"object", "minProperties", "maxProperties"}};

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

// Objects are equal in any order of their keys.
bool equal(const Schema& a, const Schema& b) {
    return a == b || (a.is_structured() && b.is_structured() && nlohmann::json(a) == nlohmann::json(b));
}

// The part of an object, or else `otherwise`.
const Schema& part(const Schema& keywords, const char* key, const Schema& otherwise) {
    const auto at = keywords.find(key);
    return at == keywords.end() ? otherwise : *at;
}
const Schema kNone = Schema::array();
const Schema kEmpty = Schema::object();
const Schema kAny = true;
const Schema kNothing = false;

bool has(const Schema& values, const Schema& value) {
    return std::any_of(values.begin(), values.end(), [&](const Schema& v) { return equal(v, value); });
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// What is no annotation.
size_t n_keywords(const Schema& schema) {
    size_t out = 0;
    for (const auto& [key, value] : schema.items()) out += is_annotation(key) ? 0 : 1;
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

// The types of documents that are generated.
std::vector<std::string> narrow_types_of(const Schema& keywords) {
    const char* implied = keywords.contains("type") ? nullptr : implied_type(keywords);
    return implied == nullptr ? types_of(keywords) : std::vector<std::string>{implied};
}

// Draft 7 calls the items of a tuple "items" and what follows them "additionalItems". Values are copied
// before the object grows, which moves them.
void rename_tuple(Schema& schema) {
    const Schema items = schema.value("items", Schema()), others = schema.value("additionalItems", Schema());
    schema.erase("additionalItems");  // says nothing of other arrays
    if (!items.is_array()) return;
    schema.erase("items");
    schema["prefixItems"] = items;
    if (!others.is_null()) schema["items"] = others;
}

const Schema& item_at(const Schema& keywords, size_t i) {
    const Schema& first = part(keywords, "prefixItems", kNone);
    return i < first.size() ? first[i] : part(keywords, "items", kAny);
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

// Throws for keywords whose values are none. Counts become integers: 2.0 is one in JSON Schema.
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
        if (is_count(key))
            return value.is_number() && value >= 0 && value < 1e9 && is_of_type(value, "integer")
                       ? nullptr
                       : "a number of them";
        const bool number =
            key == "minimum" || key == "maximum" || key.starts_with("exclusiveM") || key == "multipleOf";
        return !number || value.is_number() ? nullptr : "a number";
    };
    for (auto& [key, value] : keywords.items()) {
        if (const char* kind = is(key, value))
            refuse_schema(place, fmt::format("'{}' is {}, expected {}", key, value.dump(), kind));
        if (is_count(key)) value = static_cast<int64_t>(value.get<double>());
    }
}

// What both say; none: they exclude each other by type or values.
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

// "/a~1b" as a list of names.
std::vector<std::string> names_in(const std::string& pointer) {
    std::vector<std::string> out;
    for (size_t i = 0; i < pointer.size(); ++i) {
        if (pointer[i] == '/') {
            out.emplace_back();
        } else if (pointer[i] == '~' && i + 1 < pointer.size()) {
            out.back() += pointer[++i] == '1' ? '/' : '~';
        } else if (pointer[i] == '%' && i + 2 < pointer.size()) {
            out.back() += static_cast<char>(std::strtol(pointer.substr(i + 1, 2).c_str(), nullptr, 16));
            i += 2;
        } else {
            out.back() += pointer[i];
        }
    }
    return out;
}

bool has_key(const Schema& part, const char* key) {
    if (part.is_object() && part.contains(key)) return true;
    return part.is_structured() &&
           std::any_of(part.begin(), part.end(), [&](const Schema& p) { return has_key(p, key); });
}

// Characters, not bytes.
size_t length_of(const std::string& text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// What bounds are of.
Schema size_in(const Schema& value) {
    if (value.is_number()) return value;
    return value.is_string() ? length_of(value.get_ref<const std::string&>()) : value.size();
}

size_t n_values(const Schema& value) {
    size_t out = 1;
    if (value.is_structured())
        for (const Schema& one : value) out += n_values(one);
    return out;
}

// What `b` says and `a` does not.
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

std::optional<bool> negated(std::optional<bool> value) {
    return value ? std::optional(!*value) : std::nullopt;
}

// All hold: false if one does not, else unknown if one is.
void also(std::optional<bool>& all, std::optional<bool> one) {
    if (all == false || one == true) return;
    all = one;
}

}  // namespace

void refuse_schema(const std::string& place, const std::string& reason) {
    fail(ErrorCode::usage, "schema", "#{}: {}", place, reason);
}

bool is_annotation(std::string_view key) {
    static constexpr std::array kAnnotations = {
        "$schema",   "$comment",         "$defs",         "$id",     "$anchor",       "definitions",
        "title",     "description",      "default",       "example", "examples",      "readOnly",
        "writeOnly", "contentMediaType", "discriminator", "strict",  "contentSchema", "contentEncoding",
        "format",    "deprecated",       "$vocabulary"};
    return std::find(kAnnotations.begin(), kAnnotations.end(), key) != kAnnotations.end();
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

// Parts of which one holds.
struct SchemaReader::Group {
    std::vector<std::pair<Schema, std::string>> choices;  // with their places
    bool one = false;                                     // only one
};

struct SchemaReader::Combination {
    Schema keywords;
    std::vector<size_t> chosen = {};  // of the groups of which only one holds
};

SchemaReader::SchemaReader(const Schema& root)
    : root_(root),
      unevaluated_(has_key(root, "unevaluatedProperties") || has_key(root, "unevaluatedItems")) {}

void SchemaReader::step(const std::string& place, int depth, size_t steps) {
    if ((steps_ += steps) > kMostSteps) refuse_schema(place, "it takes too long to see what holds together");
    if (depth > kMostLevels) refuse_schema(place, "references or alternatives lead on without an end");
}

const Schema& SchemaReader::target(const Schema& reference, const std::string& place) const {
    if (!reference.is_string()) refuse_schema(place, "'$ref' is not a text");
    const auto& text = reference.get_ref<const std::string&>();
    if (!text.starts_with('#'))
        refuse_schema(place, fmt::format("'$ref' leads to another document: {}", text));
    if (text.size() > 1 && text[1] != '/') refuse_schema(place, fmt::format("there is no {}", text));
    const Schema* at = &root_;
    for (const std::string& name : names_in(text.substr(1))) {
        const bool number =
            !name.empty() && name.size() < 9 &&
            std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
        if (at->is_object() && at->contains(name)) {
            at = &(*at)[name];
        } else if (at->is_array() && number && std::stoul(name) < at->size()) {
            at = &(*at)[std::stoul(name)];
        } else {
            refuse_schema(place, fmt::format("there is no {}", text));
        }
    }
    return *at;
}

// Whether a "not" excludes a list of values only, which is resolved where the others are known.
bool excludes_values(const Schema& no) {
    return no.is_object() && n_keywords(no) == 1 && (no.contains("const") || no.contains("enum"));
}

// Schemas of which one holds where one keyword of `schema` does not; none: not known.
std::optional<std::vector<Schema>> SchemaReader::contrary(const std::string& key, const Schema& schema,
                                                          const std::string& place, int depth) {
    const Schema& value = schema[key];
    std::vector<Schema> out;
    const auto one = [&](Schema only) {
        out.push_back(std::move(only));
        return out;
    };
    // What is described below "not" counts as unevaluated, and here it would not.
    if (unevaluated_ && (key == "not" || key == "properties")) return std::nullopt;
    if (key == "const" || key == "enum") return one({{"not", {{key, value}}}});
    if (key == "not") return one(value);
    // What stands beside a reference says nothing in draft 7.
    if (key == "$ref")
        return n_keywords(schema) == 1 ? contrary(target(value, place), place, depth + 1) : std::nullopt;
    if (key == "type") {
        // Numbers that are no integers cannot be generated alone.
        Schema types = Schema::array();
        for (const std::string& type : types_of(kEmpty))
            if (common_types({type}, types_of(schema)).empty()) types.push_back(type);
        return types.empty() ? out : one({{"type", types}});
    }
    if (key == "allOf" && value.is_array()) {
        for (const Schema& each : value) {
            const auto others = contrary(each, place, depth + 1);
            if (!others) return std::nullopt;
            out.insert(out.end(), others->begin(), others->end());
        }
        return out;
    }
    if (key == "anyOf" && value.is_array()) {
        Schema all = Schema::array();
        for (const Schema& each : value) {
            const auto others = contrary(each, place, depth + 1);
            if (!others) return std::nullopt;
            if (others->empty()) return out;
            all.push_back({{"anyOf", *others}});
        }
        return one({{"allOf", all}});
    }
    if (key == "required" && value.is_array()) {
        for (const Schema& name : value)
            if (name.is_string())
                out.push_back({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
        return out;
    }
    if (key == "properties" && value.is_object()) {
        for (const auto& [name, each] : value.items())
            if (each != true)
                out.push_back({{"type", "object"},
                               {"required", Schema::array({name})},
                               {"properties", {{name, {{"not", each}}}}}});
        return out;
    }
    for (const Bounds& bounds : kBounds) {
        if ((key != bounds.least && key != bounds.most) || !value.is_number()) continue;
        const bool least = key == bounds.least, number = bounds.type == std::string_view("number");
        const char* other =
            number ? (least ? "exclusiveMaximum" : "exclusiveMinimum") : (least ? bounds.most : bounds.least);
        if (least && !number && value < 1) return out;
        out.push_back({{"type", bounds.type},
                       {other, number ? value : Schema(value.get<int64_t>() + (least ? -1 : 1))}});
        return out;
    }
    if ((key == "exclusiveMinimum" || key == "exclusiveMaximum") && value.is_number())
        return one({{"type", "number"}, {key == "exclusiveMinimum" ? "maximum" : "minimum", value}});
    return std::nullopt;
}

// Schemas of which one holds where `schema` does not; none: not known.
std::optional<std::vector<Schema>> SchemaReader::contrary(const Schema& schema, const std::string& place,
                                                          int depth) {
    step(place, depth, n_values(schema));
    if (schema.is_boolean()) return schema == true ? std::vector<Schema>() : std::vector<Schema>{true};
    if (!schema.is_object()) return std::nullopt;
    std::vector<Schema> out;
    for (const auto& [key, value] : schema.items()) {
        if (is_annotation(key)) continue;
        const auto others = contrary(key, schema, place, depth);
        if (!others) return std::nullopt;
        out.insert(out.end(), others->begin(), others->end());
    }
    return out;
}

std::vector<SchemaReader::Group> SchemaReader::groups(const Schema& schema, const std::string& place,
                                                      int depth) {
    std::vector<Group> out;
    const auto list = [&](const char* key) {
        if (!schema[key].is_array() || schema[key].empty())
            refuse_schema(place, fmt::format("'{}' is not a list of schemas", key));
        std::vector<std::pair<Schema, std::string>> choices;
        for (const Schema& part : schema[key])
            choices.emplace_back(part, fmt::format("{}/{}/{}", place, key, choices.size()));
        return choices;
    };
    for (const auto& [key, value] : schema.items()) {
        if (key == "$ref") {
            out.push_back({{{target(value, place), value.get<std::string>().substr(1)}}});
        } else if (key == "allOf") {
            for (auto& part : list("allOf")) out.push_back({{part}});
        } else if (key == "anyOf" || key == "oneOf") {
            out.push_back({list(key.c_str()), key == "oneOf"});
        } else if (key == "if" && (schema.contains("then") || schema.contains("else"))) {
            const auto others = contrary(value, place + "/if", depth + 1);
            if (!others) refuse_schema(place, "the contrary of 'if' cannot be enforced");
            Group group;
            group.choices.emplace_back(all_of(value, part(schema, "then", kAny)), place + "/then");
            for (const Schema& other : *others)
                group.choices.emplace_back(all_of(other, part(schema, "else", kAny)), place + "/else");
            out.push_back(std::move(group));
        } else if (key == "not" && !excludes_values(value)) {
            Group group;
            const auto others = contrary(value, place + "/not", depth + 1);
            if (!others)
                refuse_schema(place, "'not' cannot be enforced: the contrary of what it says is not known");
            for (const Schema& other : *others) group.choices.emplace_back(other, place + "/not");
            out.push_back(std::move(group));
        } else if ((key == "dependentRequired" || key == "dependentSchemas" || key == "dependencies") &&
                   value.is_object()) {
            for (const auto& [name, needs] : value.items()) {
                Schema present{{"required", Schema::array({name})}};
                if (needs.is_array()) {
                    for (const Schema& other : needs)
                        if (!has(present["required"], other)) present["required"].push_back(other);
                } else {
                    present = all_of(present, needs);
                }
                const std::string at = fmt::format("{}/{}/{}", place, key, name);
                out.push_back({{{present, at}, {{{"properties", {{name, false}}}}, at}}});
            }
        }
    }
    return out;
}

std::vector<Schema> SchemaReader::alternatives(const Schema& schema, const std::string& place, int depth) {
    step(place, depth);
    if (schema.is_boolean()) return schema == true ? std::vector{Schema::object()} : std::vector<Schema>();
    if (!schema.is_object())
        refuse_schema(place, fmt::format("a schema is an object, true or false, got {}", schema.dump()));
    static constexpr std::array kTakenApart = {"$ref",
                                               "allOf",
                                               "anyOf",
                                               "oneOf",
                                               "if",
                                               "then",
                                               "else",
                                               "const",
                                               "dependentRequired",
                                               "dependentSchemas",
                                               "dependencies"};
    Schema own = Schema::object();
    for (const auto& [key, value] : schema.items()) {
        const bool apart = std::find(kTakenApart.begin(), kTakenApart.end(), key) != kTakenApart.end() ||
                           (key == "not" && !excludes_values(value)) ||
                           (key.ends_with("Contains") && !schema.contains("contains"));
        if (!apart && (!is_annotation(key) || key == "format")) own[key] = value;
    }
    rename_tuple(own);
    check_kinds(own, place);
    std::vector<Combination> found;
    std::optional<Schema> start = own;
    if (schema.contains("const")) start = merged(own, {{"enum", Schema::array({schema["const"]})}}, place);
    if (start) found.push_back({*start});
    for (const Group& group : groups(schema, place, depth)) {
        std::vector<Combination> next;
        for (size_t i = 0; i < group.choices.size(); ++i) {
            const auto& [part, where] = group.choices[i];
            for (const Schema& alternative : alternatives(part, where, depth + 1)) {
                for (const Combination& one : found) {
                    step(place, depth, n_values(one.keywords) + n_values(alternative));
                    auto keywords = merged(one.keywords, alternative, where);
                    if (!keywords) continue;
                    next.push_back({*keywords, one.chosen});
                    if (group.one) next.back().chosen.push_back(i);
                }
            }
        }
        found = std::move(next);
        if (found.size() > kMostAlternatives)
            refuse_schema(place, "more than 256 combinations of alternatives");
    }
    std::vector<Combination> kept;
    for (Combination& one : found) {
        for (const auto& [unevaluated, others] : {std::pair("unevaluatedProperties", "additionalProperties"),
                                                  std::pair("unevaluatedItems", "items")}) {
            if (!one.keywords.contains(unevaluated)) continue;
            const Schema value = one.keywords[unevaluated];
            one.keywords.erase(unevaluated);
            if (!one.keywords.contains(others)) one.keywords[others] = value;
        }
        if (auto keywords = settled(one.keywords, place, depth)) kept.push_back({*keywords, one.chosen});
    }
    return apart(std::move(kept), place, depth);
}

// Of combinations that differ in what only one may hold of, each becomes what it is without the others.
std::vector<Schema> SchemaReader::apart(std::vector<Combination> all, const std::string& place, int depth) {
    std::vector<Schema> out;
    for (const Combination& one : all) {
        std::vector<Schema> left{one.keywords};
        for (const Combination& other : all) {
            if (one.chosen == other.chosen) continue;
            std::vector<Schema> next;
            for (Schema& keywords : left) {
                step(place, depth, n_values(keywords));
                if (excludes(keywords, other.keywords, place, 0)) {
                    next.push_back(std::move(keywords));
                    continue;
                }
                const auto others = contrary(beyond(keywords, other.keywords), place, depth + 1);
                const std::string refusal =
                    "alternatives of 'oneOf' could hold at the same time, which cannot be prevented";
                if (!others) refuse_schema(place, refusal);
                if (others->empty()) continue;
                for (Schema& part : alternatives(all_of(keywords, {{"anyOf", *others}}), place, depth + 1)) {
                    if (part.contains("not")) refuse_schema(place, refusal);
                    next.push_back(std::move(part));
                }
            }
            left = std::move(next);
        }
        out.insert(out.end(), std::make_move_iterator(left.begin()), std::make_move_iterator(left.end()));
        if (out.size() > kMostAlternatives)
            refuse_schema(place, "more than 256 combinations of alternatives");
    }
    return out;
}

// With the values that follow it, and without those that "not" excludes, where they can be told; none: no
// document follows.
std::optional<Schema> SchemaReader::settled(Schema keywords, const std::string& place, int depth) {
    if (keywords.contains("not")) {
        const auto types = keywords.contains("enum") ? std::vector<std::string>() : types_of(keywords);
        const bool few = std::all_of(types.begin(), types.end(),
                                     [](const std::string& t) { return t == "boolean" || t == "null"; });
        if (few && !types.empty()) {
            keywords["enum"] = contains(types, "null") ? Schema::array({nullptr}) : Schema::array();
            if (contains(types, "boolean")) keywords["enum"].insert(keywords["enum"].end(), {true, false});
        }
    }
    if (!keywords.contains("enum")) return keywords;
    Schema values = Schema::array();
    Schema others = keywords;
    others.erase("enum");
    for (const Schema& value : keywords["enum"]) {
        const auto follow = keywords_hold(value, others, place, depth);
        if (!follow) return keywords;
        if (*follow) values.push_back(value);
    }
    if (values.empty()) return std::nullopt;
    return Schema{{"enum", values}};
}

std::optional<bool> SchemaReader::follows(const Schema& value, const Schema& schema, const std::string& place,
                                          int depth) {
    std::optional<bool> out = false;
    for (const Schema& keywords : alternatives(schema, place, depth + 1)) {
        const auto one = keywords_hold(value, keywords, place, depth + 1);
        if (one == true) return true;
        if (!one) out = std::nullopt;
    }
    return out;
}

std::optional<bool> SchemaReader::keywords_hold(const Schema& value, const Schema& keywords,
                                                const std::string& place, int depth) {
    step(place, depth);
    std::optional<bool> out = true;
    const auto each = [&](const auto& schema_of) {
        for (const auto& [name, part] : value.items())
            if (const Schema* schema = schema_of(name)) also(out, follows(part, *schema, place, depth));
    };
    for (const auto& [key, wanted] : keywords.items()) {
        if (is_annotation(key)) continue;
        const auto bounds = std::find_if(kBounds.begin(), kBounds.end(),
                                         [&](const Bounds& b) { return key == b.least || key == b.most; });
        if (key == "type") {
            const auto types = types_of(keywords);
            also(out, std::any_of(types.begin(), types.end(),
                                  [&](const std::string& type) { return is_of_type(value, type); }));
        } else if (key == "enum") {
            also(out, has(wanted, value));
        } else if (key == "not") {
            also(out, negated(follows(value, wanted, place, depth)));
        } else if (bounds != kBounds.end() && wanted.is_number()) {
            if (!is_of_type(value, bounds->type)) continue;
            const Schema size = size_in(value);
            also(out, key == bounds->least ? size >= wanted : size <= wanted);
        } else if (key.starts_with("exclusive") && wanted.is_number()) {
            if (value.is_number()) also(out, key == "exclusiveMinimum" ? value > wanted : value < wanted);
        } else if (key == "multipleOf") {
            if (!value.is_number()) continue;
            const bool whole = value.is_number_integer() && wanted.is_number_unsigned() && wanted != 0;
            also(out,
                 whole ? std::optional(value.get<int64_t>() % wanted.get<int64_t>() == 0) : std::nullopt);
        } else if (key == "uniqueItems") {
            if (value.is_array() && wanted == true) {
                for (size_t i = 0; i < value.size(); ++i)
                    for (size_t j = 0; j < i; ++j) also(out, !equal(value[i], value[j]));
            }
        } else if (key == "required") {
            if (!value.is_object()) continue;
            for (const Schema& name : wanted) also(out, value.contains(name.get_ref<const std::string&>()));
        } else if (key == "properties") {
            if (value.is_object())
                each(
                    [&](const std::string& name) { return wanted.contains(name) ? &wanted[name] : nullptr; });
        } else if (key == "additionalProperties") {
            if (!value.is_object() || wanted == true) continue;
            if (keywords.contains("patternProperties")) return std::nullopt;
            const Schema& described = part(keywords, "properties", kEmpty);
            each([&](const std::string& name) { return described.contains(name) ? nullptr : &wanted; });
        } else if (key == "propertyNames") {
            if (!value.is_object()) continue;
            for (const auto& [name, part] : value.items())
                also(out, follows(Schema(name), wanted, place, depth));
        } else if (key == "items" || key == "prefixItems") {
            if (!value.is_array()) continue;
            for (size_t i = 0; i < value.size(); ++i)
                also(out, follows(value[i], item_at(keywords, i), place, depth));
        } else {
            const char* type = implied_type({{key, wanted}});
            if (type == nullptr || is_of_type(value, type)) also(out, std::nullopt);
        }
    }
    return out;
}

// Whether no document of `a`, taken to have the properties that are described only, follows `b`.
bool SchemaReader::excludes(const Schema& a, const Schema& b, const std::string& place, int depth) {
    step(place, depth);
    if (depth > kDeepestProof) return false;
    const auto none_of = [&](const Schema& values, const Schema& keywords) {
        return std::all_of(values.begin(), values.end(), [&](const Schema& v) {
            return keywords_hold(v, keywords, place, depth) == false;
        });
    };
    if (a.contains("enum") && none_of(a["enum"], b)) return true;
    if (b.contains("enum") && none_of(b["enum"], a)) return true;
    const auto types = common_types(narrow_types_of(a), types_of(b));
    if (types.empty()) return true;
    if (types.size() > 1) return false;
    const std::string type = types[0] == "integer" ? "number" : types[0];
    for (const Bounds& bounds : kBounds) {
        if (type != bounds.type) continue;
        const auto beyond = [&](const Schema& high, const Schema& low) {
            return high.contains(bounds.least) && low.contains(bounds.most) &&
                   low[bounds.most] < high[bounds.least];
        };
        if (beyond(a, b) || beyond(b, a)) return true;
    }
    if (type != "object") return false;
    const Schema& of_a = part(a, "properties", kEmpty);
    const Schema& of_b = part(b, "properties", kEmpty);
    const Schema& need_a = part(a, "required", kNone);
    const Schema& need_b = part(b, "required", kNone);
    const Schema& others_a = part(a, "additionalProperties", kNothing);
    const Schema& others_b = part(b, "additionalProperties", kAny);
    const auto possible = [](const Schema& keywords, const Schema& described, const Schema& others,
                             const std::string& name) {
        return described.contains(name) ? described[name] != false
                                        : others != false || keywords.contains("patternProperties");
    };
    for (const Schema* names : {&need_a, &need_b}) {
        for (const Schema& n : *names) {
            const auto name = n.get<std::string>();
            if (!possible(b, of_b, others_b, name) ||
                (has(need_b, n) && !has(need_a, n) && !possible(a, of_a, others_a, name)))
                return true;
            if (!of_a.contains(name) || !of_b.contains(name)) continue;
            const auto parts_a = alternatives(of_a[name], place, depth + 1),
                       parts_b = alternatives(of_b[name], place, depth + 1);
            const bool apart = std::all_of(parts_a.begin(), parts_a.end(), [&](const Schema& x) {
                return std::all_of(parts_b.begin(), parts_b.end(),
                                   [&](const Schema& y) { return excludes(x, y, place, depth + 1); });
            });
            if (apart) return true;
        }
    }
    return false;
}

bool SchemaReader::disjoint(const Schema& choices, const std::string& place) {
    std::vector<std::vector<Schema>> all;
    for (const Schema& choice : choices)
        all.push_back(alternatives(choice, fmt::format("{}/oneOf/{}", place, all.size())));
    for (size_t i = 0; i < all.size(); ++i) {
        for (size_t j = 0; j < all.size(); ++j) {
            if (i == j) continue;
            for (const Schema& a : all[i])
                for (const Schema& b : all[j])
                    if (!excludes(a, b, place, 0)) return false;
        }
    }
    return true;
}

}  // namespace refold
