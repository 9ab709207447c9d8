#include "grammar/schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "grammar/schema_alternatives.h"
#include "grammar/schema_formats.h"
#include "grammar/schema_keywords.h"
#include "grammar/schema_references.h"

namespace refold {
namespace {

// Counts before anything is built: ordered_json searches an object for every key that it gets, and what reads
// schemas calls itself level by level.
class Counter : public nlohmann::json_sax<Schema> {
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

constexpr double kExact = 9007199254740992.0;  // integers up to this are doubles
constexpr int kDeepest = 96;  // schemas within each other, which grow where parts hold together

bool is_enforced(std::string_view key) {
    static constexpr std::array kEnforced = {"type",
                                             "properties",
                                             "required",
                                             "additionalProperties",
                                             "patternProperties",
                                             "propertyNames",
                                             "minProperties",
                                             "maxProperties",
                                             "items",
                                             "prefixItems",
                                             "minItems",
                                             "maxItems",
                                             "minLength",
                                             "maxLength",
                                             "pattern",
                                             "minimum",
                                             "maximum",
                                             "exclusiveMinimum",
                                             "exclusiveMaximum",
                                             "multipleOf",
                                             "format"};
    return std::find(kEnforced.begin(), kEnforced.end(), key) != kEnforced.end();
}

class Enforcer {
public:
    explicit Enforcer(const Schema& root) : root_(root), reader_(root_) {}

    Schema whole() {
        Schema out = enforced(root_, "", 0);
        Schema definitions = Schema::object();
        for (size_t i = 0; i < definitions_.size(); ++i) {  // it grows
            const auto [schema, place] = definitions_[i];
            const bool parts = schema->size() == 1 && schema->contains("allOf");
            Schema one = parts ? apart(*schema, place, 0) : enforced(*schema, place, 0);
            if (one == false) refuse_never(place);
            definitions[std::to_string(i)] = std::move(one);
        }
        if (out == false) refuse_never("");
        if (!definitions.empty()) out["$defs"] = std::move(definitions);
        return out;
    }

private:
    // False: no document follows it.
    Schema enforced(const Schema& schema, const std::string& place, int depth) {
        if (schema.is_boolean()) return schema;
        if (!schema.is_object())
            refuse_schema(place, fmt::format("a schema is an object, true or false, got {}", schema.dump()));
        if (depth > kDeepest) refuse_schema(place, "what holds together is nested without an end");
        std::vector<std::string> keys;
        for (const auto& [key, value] : schema.items())
            if (!is_annotation(key)) keys.push_back(key);
        if (keys.size() == 1 && keys[0] == "$ref") {
            const Schema& to = reader_.target(schema["$ref"], place);
            return reference(schema["$ref"].get<std::string>(), to,
                             schema["$ref"].get<std::string>().substr(1));
        }
        if (keys.size() == 1 && schema[keys[0]].is_array() && !schema[keys[0]].empty()) {
            const Schema& parts = schema[keys[0]];
            if (keys[0] == "allOf" && parts.size() == 1)
                return enforced(parts[0], place + "/allOf/0", depth + 1);
            if (keys[0] == "allOf") {
                if (reader_.alternatives(schema, place).empty()) return false;
                // Under a name, so that parts which lead to themselves end.
                return reference(parts.dump(), kept({{"allOf", parts}}), place);
            }
            if (keys[0] == "anyOf" || (keys[0] == "oneOf" && reader_.disjoint(parts, place))) {
                std::vector<Schema> choices;
                for (const Schema& part : parts)
                    choices.push_back(
                        enforced(part, fmt::format("{}/{}/{}", place, keys[0], choices.size()), depth + 1));
                return any_of(std::move(choices));
            }
        }
        return apart(schema, place, depth);
    }

    Schema apart(const Schema& schema, const std::string& place, int depth) {
        std::vector<Schema> choices;
        for (Schema& keywords : reader_.alternatives(schema, place))
            choices.push_back(finished(std::move(keywords), place, depth));
        return any_of(std::move(choices));
    }

    static Schema any_of(std::vector<Schema> choices) {
        std::erase(choices, Schema(false));
        if (choices.empty()) return false;
        // Values of all alternatives are one list.
        const auto values = [](const Schema& choice) {
            return choice.is_object() && choice.size() == 1 && choice.contains("enum");
        };
        const auto first = std::find_if(choices.begin(), choices.end(), values);
        if (first != choices.end()) {
            for (auto next = first + 1; next != choices.end(); ++next)
                if (values(*next))
                    (*first)["enum"].insert((*first)["enum"].end(), (*next)["enum"].begin(),
                                            (*next)["enum"].end());
            choices.erase(std::remove_if(first + 1, choices.end(), values), choices.end());
        }
        if (choices.size() == 1) return std::move(choices[0]);
        return {{"anyOf", std::move(choices)}};
    }

    // The definition of `schema`, which is made later.
    Schema reference(const std::string& key, const Schema& schema, const std::string& place) {
        const auto [at, added] = names_.emplace(key, definitions_.size());
        if (added) definitions_.emplace_back(&schema, place);
        return {{"$ref", fmt::format("#/$defs/{}", at->second)}};
    }

    const Schema& kept(Schema schema) {
        made_.push_back(std::make_unique<Schema>(std::move(schema)));
        return *made_.back();
    }

    Schema never(const std::string& place, const std::string& why) {
        if (why_never_.empty()) why_never_ = fmt::format("#{}: no document can follow it: {}", place, why);
        return false;
    }
    [[noreturn]] void refuse_never(const std::string& place) {
        if (!why_never_.empty()) fail(ErrorCode::usage, "schema", "{}", why_never_);
        refuse_schema(place, "no document that can be generated follows it: its parts exclude each other");
    }

    // Keywords that hold together, as XGrammar enforces them.
    Schema finished(Schema keywords, const std::string& place, int depth) {
        if (keywords.contains("enum")) {
            for (const auto& [key, value] : keywords.items()) {
                if (key != "enum" && key != "type" && key != "format")
                    refuse_schema(place,
                                  fmt::format("'{}' beside 'enum' or 'const' cannot be enforced", key));
            }
            check_numbers(keywords["enum"], place);
            return told_apart({{"enum", keywords["enum"]}});
        }
        if (keywords.contains("uniqueItems") &&
            (keywords["uniqueItems"] == false || keywords.value("maxItems", Schema(2)) < 2))
            keywords.erase("uniqueItems");
        if (!keywords.contains("type")) {
            if (const char* type = implied_type(keywords)) keywords["type"] = type;
        }
        if (keywords.contains("type") && keywords["type"].is_array()) {
            std::vector<Schema> choices;
            for (const std::string& type : types_of(keywords)) {
                keywords["type"] = type;
                choices.push_back(finished(keywords, place, depth));
            }
            return any_of(std::move(choices));
        }
        // XGrammar knows multiples of integers only.
        if (keywords.contains("multipleOf") && keywords["multipleOf"].is_number_unsigned() &&
            keywords["type"] == "number")
            keywords["type"] = "integer";
        const std::string type = keywords.value("type", "");
        if (type == "integer") round_bounds(keywords);
        // An annotation; XGrammar would drop what stands beside it.
        if (keywords.contains("pattern") || keywords.contains("minLength") || keywords.contains("maxLength"))
            keywords.erase("format");
        if (type == "string" && keywords.contains("pattern"))
            check_pattern(keywords["pattern"].get<std::string>(), place);
        if (type == "string" && keywords.contains("format") && keywords["format"].is_string()) {
            if (std::string pattern = format_pattern(keywords["format"].get<std::string>());
                !pattern.empty()) {
                keywords.erase("format");
                keywords["pattern"] = std::move(pattern);
            }
        }
        Schema out = Schema::object();
        for (const auto& [key, value] : keywords.items()) {
            const char* of = implied_type({{key, value}});
            // Keywords of types that are not generated hold of themselves.
            if (of != nullptr && type != of && !(type == "integer" && of == std::string_view("number")))
                continue;
            if (!is_enforced(key)) refuse_schema(place, fmt::format("'{}' cannot be enforced", key));
            out[key] = value;
        }
        for (const auto& [least, most] :
             {std::pair("minimum", "maximum"), std::pair("minLength", "maxLength"),
              std::pair("minItems", "maxItems"), std::pair("minProperties", "maxProperties"),
              std::pair("exclusiveMinimum", "exclusiveMaximum"), std::pair("minimum", "exclusiveMaximum"),
              std::pair("exclusiveMinimum", "maximum")}) {
            if (!out.contains(least) || !out.contains(most)) continue;
            const bool exclusive = *least == 'e' || *most == 'e';
            if (out[most] < out[least] || (exclusive && out[most] == out[least]))
                return never(place, fmt::format("'{}' is above '{}'", least, most));
        }
        if (out.contains("maxProperties") &&
            out["maxProperties"] < out.value("required", Schema::array()).size())
            return never(place, "'maxProperties' is below the number of required ones");
        if (type == "number") check_range(out, place);
        if (type == "object") return told_apart(finished_object(std::move(out), place, depth));
        return type == "array" ? finished_array(std::move(out), place, depth) : out;
    }

    // XGrammar takes schemas that differ below such names only for the same one. An unknown keyword tells
    // them apart.
    Schema told_apart(Schema out) {
        static constexpr std::array kPassedOver = {"title",      "default",  "description", "examples",
                                                   "deprecated", "readOnly", "writeOnly"};
        const auto named = [](const Schema& value, const auto& self) -> bool {
            const auto has_name = [&](const char* key) { return value.is_object() && value.contains(key); };
            return std::any_of(kPassedOver.begin(), kPassedOver.end(), has_name) ||
                   (value.is_structured() && std::any_of(value.begin(), value.end(),
                                                         [&](const Schema& one) { return self(one, self); }));
        };
        for (const char* key : {"enum", "properties", "patternProperties"}) {
            if (!out.is_object() || !named(part(out, key, kNone), named)) continue;
            out["x-other"] = n_others_++;
            break;
        }
        return out;
    }

    // XGrammar writes larger ones as doubles.
    static void check_numbers(const Schema& values, const std::string& place) {
        for (const Schema& value : values) {
            if (value.is_structured()) check_numbers(value, place);
            if (value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int64_t>::max())
                refuse_schema(place, fmt::format("{} has more digits than can be written", value.dump()));
        }
    }

    // The bounds of integers as integers.
    static void round_bounds(Schema& keywords) {
        for (const char* key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
            if (!keywords.contains(key) || !keywords[key].is_number_float()) continue;
            const double bound = keywords[key].get<double>();
            if (std::abs(bound) > kExact) continue;
            const bool least = std::string_view(key).ends_with("inimum"), inclusive = *key == 'm';
            keywords[key] = static_cast<int64_t>(least == inclusive ? std::ceil(bound) : std::floor(bound));
        }
        if (keywords.value("multipleOf", Schema()) == 1) keywords.erase("multipleOf");
    }

    // XGrammar writes six digits behind the point.
    static void check_range(const Schema& keywords, const std::string& place) {
        constexpr double kSmallest = 2e-6;
        double low = -std::numeric_limits<double>::infinity(), high = -low;
        for (const char* key : {"minimum", "exclusiveMinimum"})
            if (keywords.contains(key)) low = std::max(low, keywords[key].get<double>());
        for (const char* key : {"maximum", "exclusiveMaximum"})
            if (keywords.contains(key)) high = std::min(high, keywords[key].get<double>());
        const auto large = [](double bound) { return std::isfinite(bound) && std::abs(bound) >= kExact; };
        if (large(low) || large(high) || high - low < kSmallest)
            refuse_schema(place, "bounds of numbers that are so close or so large cannot be enforced");
    }

    // Characters that JSON escapes would be written as they are.
    static void check_pattern(const std::string& pattern, const std::string& place) {
        bool excluded = false;  // within [^...]
        for (size_t i = 0; i < pattern.size(); ++i) {
            const char c = pattern[i];
            if (c == '[') excluded = i + 1 < pattern.size() && pattern[i + 1] == '^';
            if (c == ']') excluded = false;
            const char next = c == '\\' && i + 1 < pattern.size() ? pattern[++i] : 'd';
            const bool escaped = std::string_view("\\\"nrtfv0cxu").find(next) != std::string_view::npos;
            if (c < ' ' || c > '~' || (!excluded && (escaped || c == '"')))
                refuse_schema(
                    place,
                    "a 'pattern' with quotes, backslashes, control characters or characters beyond ASCII "
                    "cannot be enforced");
        }
    }

    Schema finished_object(Schema out, const std::string& place, int depth) {
        check_patterns(out, place);
        name_properties(out, place, depth);
        add_required(out, place);
        const Schema required = out.value("required", Schema::array());
        if (out.contains("properties")) {
            const bool open = out.contains("additionalProperties") || out.contains("propertyNames") ||
                              out.contains("minProperties");
            bool close = false;  // others could have the name of one that must not be
            Schema properties = Schema::object();
            for (const auto& [name, part] : out["properties"].items()) {
                const std::string where = fmt::format("{}/properties/{}", place, name);
                const bool excluded = named_otherwise(out, name, where);
                Schema one = excluded ? Schema(false) : enforced(part, where, depth + 1);
                if (one != false) {
                    properties[name] = std::move(one);
                } else if (std::find(required.begin(), required.end(), name) != required.end()) {
                    return never(where, "it is required, and has no value");
                } else {
                    close = close || (open && !excluded);
                }
            }
            out["properties"] = std::move(properties);
            if (close) out["additionalProperties"] = false;
        }
        check_names(out, place);
        if (out.contains("additionalProperties"))
            out["additionalProperties"] =
                enforced(out["additionalProperties"], place + "/additionalProperties", depth + 1);
        if (out.contains("patternProperties")) {
            Schema patterns = Schema::object();
            for (const auto& [pattern, part] : out["patternProperties"].items()) {
                Schema one =
                    enforced(part, fmt::format("{}/patternProperties/{}", place, pattern), depth + 1);
                if (one != false) patterns[pattern] = std::move(one);
            }
            out["patternProperties"] = patterns;
            if (patterns.empty()) out.erase("patternProperties");
        }
        if (out.value("additionalProperties", Schema(true)) == false) out.erase("propertyNames");
        return with_fewest(std::move(out), required.size(), place);
    }

    // 'propertyNames' as properties, where it is a list: other names could be written twice, and be those of
    // properties.
    void name_properties(Schema& out, const std::string& place, int depth) {
        if (!out.contains("propertyNames")) return;
        constexpr size_t kMost = 64;
        const Schema names =
            apart(all_of(out["propertyNames"], {{"type", "string"}}), place + "/propertyNames", depth + 1);
        const bool none = names == false, closed = out.value("additionalProperties", Schema(true)) == false;
        if (none || (names.contains("enum") && names["enum"].size() <= kMost)) {
            const Schema own = out.value("properties", Schema::object()),
                         others = out.value("additionalProperties", Schema(true));
            Schema properties = Schema::object();
            for (const auto& [name, part] : own.items()) {
                if (!none &&
                    std::find(names["enum"].begin(), names["enum"].end(), name) != names["enum"].end())
                    properties[name] = part;
            }
            for (const Schema& name : none ? Schema::array() : names["enum"])
                if (!properties.contains(name.get<std::string>()))
                    properties[name.get<std::string>()] = others;
            out["properties"] = std::move(properties);
            out["additionalProperties"] = false;
            out.erase("propertyNames");
        } else if (!closed) {
            if (out.contains("properties") || out.contains("required"))
                refuse_schema(
                    place,
                    "'propertyNames' beside 'properties' or 'required' is enforced for up to 64 names only");
            out["propertyNames"] = names;
        }
    }

    // XGrammar keeps other properties from having these names byte by byte.
    static void check_names(const Schema& keywords, const std::string& place) {
        if (part(keywords, "additionalProperties", kNothing) == false) return;
        for (const auto& [name, one] : part(keywords, "properties", kEmpty).items()) {
            const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
                return c >= ' ' && c <= '~' && c != '"' && c != '\\' && c != '/';
            });
            if (!plain)
                refuse_schema(place,
                              fmt::format("'additionalProperties' beside the name {} cannot be enforced",
                                          Schema(name).dump()));
        }
    }

    // Names that are free may be written twice, and count once in the document.
    Schema with_fewest(Schema out, size_t n_required, const std::string& place) {
        const Schema least = out.value("minProperties", Schema(0));
        const bool closed = out.value("additionalProperties", Schema(false)) == false &&
                            !out.contains("patternProperties") && !out.contains("propertyNames");
        if (closed && least <= out.value("properties", Schema::object()).size()) return out;
        if (closed && out.contains("additionalProperties"))
            return never(place, "it has fewer properties than 'minProperties'");
        if (least > n_required + 1)
            refuse_schema(
                place,
                "'minProperties' is enforced for properties that 'properties' describes, and one more");
        if (least <= n_required) out.erase("minProperties");
        if (closed) out["additionalProperties"] = true;
        return out;
    }

    // Whether 'propertyNames', which is no list, excludes a name.
    bool named_otherwise(const Schema& keywords, const std::string& name, const std::string& place) {
        if (!keywords.contains("propertyNames")) return false;
        const auto follows = reader_.follows(Schema(name), keywords["propertyNames"], place);
        if (!follows) refuse_schema(place, "'propertyNames' beside 'properties' cannot be enforced");
        return !*follows;
    }

    // Keys that two parts of a schema may speak of would get the one's values only.
    static void check_patterns(const Schema& schema, const std::string& place) {
        if (!schema.contains("patternProperties")) return;
        const bool alone =
            schema["patternProperties"].size() < 2 && schema.value("properties", Schema::object()).empty() &&
            schema.value("additionalProperties", Schema(false)) == false && !schema.contains("propertyNames");
        if (!alone)
            refuse_schema(place,
                          "'patternProperties' is enforced only for one pattern, and without 'properties', "
                          "'additionalProperties' and "
                          "'propertyNames'");
    }

    // Names that are required get a property: XGrammar forgets others.
    static void add_required(Schema& schema, const std::string& place) {
        if (!schema.contains("required")) return;
        const Schema required = schema["required"];
        for (const Schema& name : required) {
            if (schema.contains("properties") && schema["properties"].contains(name.get<std::string>()))
                continue;
            const Schema others = schema.value("additionalProperties", Schema(true));
            if (schema.contains("patternProperties"))
                refuse_schema(place,
                              fmt::format("'required' has {}, which 'properties' does not say", name.dump()));
            schema["properties"][name.get<std::string>()] = others;
        }
    }

    Schema finished_array(Schema out, const std::string& place, int depth) {
        const Schema least = out.value("minItems", Schema(0));
        Schema first = Schema::array();
        bool cut = false;
        for (const Schema& part : out.value("prefixItems", Schema::array())) {
            cut = out.contains("maxItems") && out["maxItems"] <= first.size();
            Schema one =
                cut ? Schema(false)
                    : enforced(part, fmt::format("{}/prefixItems/{}", place, first.size()), depth + 1);
            cut = one == false;
            if (cut) break;
            first.push_back(one == true ? Schema::object() : std::move(one));
        }
        if (cut) {
            out["items"] = false;
        } else if (out.contains("items")) {
            out["items"] = enforced(out["items"], place + "/items", depth + 1);
        } else if (least > first.size()) {
            out["items"] = true;
        }
        if (least > first.size() && out["items"] == false)
            return never(place, "it has fewer items than 'minItems'");
        out["prefixItems"] = first;
        if (first.empty()) out.erase("prefixItems");
        return out;
    }

    const Schema root_;
    SchemaReader reader_;
    std::map<std::string, size_t> names_;                             // of definitions, by what they were
    std::vector<std::pair<const Schema*, std::string>> definitions_;  // with their places
    std::vector<std::unique_ptr<Schema>> made_;                       // those that stand nowhere
    std::string why_never_;
    size_t n_others_ = 0;
};

}  // namespace

nlohmann::ordered_json parse_schema(const std::string& text) {
    Counter counter;
    if (!Schema::sax_parse(text, &counter)) fail(ErrorCode::usage, "schema", "{}", counter.problem());
    return Schema::parse(text);
}

nlohmann::ordered_json enforceable_schema(const nlohmann::ordered_json& schema) {
    if (schema.is_boolean()) return schema;
    if (!schema.is_object())
        fail(ErrorCode::usage, "schema", "a JSON Schema is an object, got {}", schema.type_name());
    return Enforcer(with_local_references(schema)).whole();
}

}  // namespace refold
