#include "grammar/schema_alternatives.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "grammar/format_work.h"
#include "grammar/schema_keywords.h"

namespace refold {
namespace {

constexpr int kMostLevels = 64;        // references and alternatives within each other
constexpr size_t kMostSteps = 500000;  // values looked at or copied: some tenths of a second
constexpr size_t kMostAlternatives = 64;
constexpr const char* kNotApart =
    "alternatives of 'oneOf' could hold at the same time, which cannot be prevented";

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

// Whether a "not" excludes a list of values only, which is resolved where the others are known.
bool excludes_values(const Schema& no) {
    return no.is_object() && n_keywords(no) == 1 && (no.contains("const") || no.contains("enum"));
}

}  // namespace

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
    FormatWork::count(100 * steps);  // each copies some values
    steps_ += steps;
    if (steps_ > kMostSteps) refuse_schema(place, "it takes too long to see what holds together");
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

// Schemas of which one holds where one keyword of `schema` does not; none: not known.
std::optional<std::vector<Schema>> SchemaReader::contrary(const std::string& key, const Schema& schema,
                                                          const std::string& place, int depth) {
    const Schema& value = schema[key];
    std::vector<Schema> out;
    const auto one = [&](Schema only) {
        out.push_back(std::move(only));
        return out;
    };
    ++narrowed_;
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
    bool several = false;
    for (const Group& group : groups(schema, place, depth)) {
        several = several || group.choices.size() > 1;
        std::vector<Combination> next;
        for (size_t i = 0; i < group.choices.size(); ++i) {
            const auto& [part, where] = group.choices[i];
            const size_t narrowed = narrowed_;
            const auto parts = alternatives(part, where, depth + 1);
            if (group.one && group.choices.size() > 1 && narrowed != narrowed_)
                refuse_schema(place, kNotApart);
            for (const Schema& alternative : parts) {
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
            refuse_schema(place, "more than 64 combinations of alternatives");
    }
    std::vector<Combination> kept;
    for (Combination& one : found)
        if (auto keywords = settled(one.keywords, place, depth)) kept.push_back({*keywords, one.chosen});
    std::vector<Schema> out;
    for (Schema& keywords : apart(kept, place, depth)) {
        close(keywords, several);
        if (auto left = settled(std::move(keywords), place, depth)) out.push_back(std::move(*left));
    }
    return out;
}

// All that is described here has been evaluated, and nothing else. Other alternatives that hold as well could
// evaluate more.
void SchemaReader::close(Schema& keywords, bool several) {
    for (const auto& [unevaluated, others] : {std::pair("unevaluatedProperties", "additionalProperties"),
                                              std::pair("unevaluatedItems", "items")}) {
        if (!keywords.contains(unevaluated)) continue;
        const Schema value = keywords[unevaluated];
        keywords.erase(unevaluated);
        if (!keywords.contains(others)) keywords[others] = value;
        if (several) ++narrowed_;
    }
}

// Of combinations that differ in what only one may hold of, each becomes what it is without the others.
std::vector<Schema> SchemaReader::apart(const std::vector<Combination>& all, const std::string& place,
                                        int depth) {
    std::vector<Schema> out;
    for (const Combination& one : all) {
        std::vector<Schema> left{one.keywords};
        for (const Combination& other : all) {
            if (one.chosen == other.chosen) continue;
            std::vector<Schema> next;
            for (Schema& keywords : left) {
                step(place, depth, n_values(keywords));
                if (excludes(keywords, other.keywords, place, 0, false)) {
                    next.push_back(std::move(keywords));
                    continue;
                }
                const auto others = contrary(beyond(keywords, other.keywords), place, depth + 1);
                if (!others) refuse_schema(place, kNotApart);
                ++narrowed_;
                if (others->empty()) continue;
                for (Schema& part : alternatives(all_of(keywords, {{"anyOf", *others}}), place, depth + 1)) {
                    if (part.contains("not")) refuse_schema(place, kNotApart);
                    next.push_back(std::move(part));
                }
            }
            left = std::move(next);
        }
        out.insert(out.end(), std::make_move_iterator(left.begin()), std::make_move_iterator(left.end()));
        if (out.size() > kMostAlternatives) refuse_schema(place, "more than 64 combinations of alternatives");
    }
    return out;
}

// With the values that follow it, and without those that "not" excludes, where they can be told; none: no
// document follows.
std::optional<Schema> SchemaReader::settled(Schema keywords, const std::string& place, int depth) {
    if (keywords.contains("not")) {
        // Types of a few values become these.
        Schema few = Schema::array();
        for (const std::string& type : types_of(keywords)) {
            if (type == "null") few.push_back(nullptr);
            if (type == "boolean") few.insert(few.end(), {true, false});
        }
        const bool all = common_types(types_of(keywords), {"object", "array", "string", "number"}).empty();
        if (all && !keywords.contains("enum")) keywords["enum"] = few;
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

}  // namespace refold
