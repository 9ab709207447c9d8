// What SchemaReader can tell of values, and of alternatives that exclude each other.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "grammar/schema_alternatives.h"
#include "grammar/schema_keywords.h"

namespace refold {
namespace {

constexpr int kDeepestProof = 4;  // properties of properties that tell alternatives apart

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

std::optional<bool> negated(std::optional<bool> value) {
    return value ? std::optional(!*value) : std::nullopt;
}

// All hold: false if one does not, else unknown if one is.
void also(std::optional<bool>& all, std::optional<bool> one) {
    if (all == false || one == true) return;
    all = one;
}

}  // namespace

std::optional<bool> SchemaReader::follows(const Schema& value, const Schema& schema, const std::string& place,
                                          int depth) {
    const size_t narrowed = narrowed_;
    const auto all = alternatives(schema, place, depth + 1);
    std::optional<bool> out = narrowed == narrowed_ ? std::optional(false) : std::nullopt;
    for (const Schema& keywords : all) {
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
            const bool known = value.is_number_integer() && value == value.get<int64_t>() &&
                               wanted.is_number_unsigned() && wanted != 0 &&
                               wanted.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
            also(out,
                 known ? std::optional(value.get<int64_t>() % wanted.get<int64_t>() == 0) : std::nullopt);
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

// Whether no document of `a` follows `b`. `whole`: nothing is added to `a` later, so its documents have the
// implied type, and only the properties that it describes.
bool SchemaReader::excludes(const Schema& a, const Schema& b, const std::string& place, int depth,
                            bool whole) {
    step(place, depth);
    if (depth > kDeepestProof) return false;
    const auto none_of = [&](const Schema& values, const Schema& keywords) {
        return std::all_of(values.begin(), values.end(), [&](const Schema& v) {
            return keywords_hold(v, keywords, place, depth) == false;
        });
    };
    if (a.contains("enum") && none_of(a["enum"], b)) return true;
    if (b.contains("enum") && none_of(b["enum"], a)) return true;
    const auto types = common_types(whole ? narrow_types_of(a) : types_of(a), types_of(b));
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
    // Otherwise names are added that the schema does not describe.
    const bool closed = whole && !a.contains("minProperties") && !a.contains("propertyNames");
    const Schema& others_a = part(a, "additionalProperties", closed ? kNothing : kAny);
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
            const size_t narrowed = narrowed_;
            const auto parts_b = alternatives(of_b[name], place, depth + 1);
            if (narrowed != narrowed_) continue;
            const auto parts_a = alternatives(of_a[name], place, depth + 1);
            const bool apart = std::all_of(parts_a.begin(), parts_a.end(), [&](const Schema& x) {
                return std::all_of(parts_b.begin(), parts_b.end(),
                                   [&](const Schema& y) { return excludes(x, y, place, depth + 1, whole); });
            });
            if (apart) return true;
        }
    }
    return false;
}

bool SchemaReader::disjoint(const Schema& choices, const std::string& place) {
    std::vector<std::vector<Schema>> all;
    const size_t narrowed = narrowed_;
    for (const Schema& choice : choices)
        all.push_back(alternatives(choice, fmt::format("{}/oneOf/{}", place, all.size())));
    if (narrowed != narrowed_) return false;
    for (size_t i = 0; i < all.size(); ++i) {
        for (size_t j = 0; j < all.size(); ++j) {
            if (i == j) continue;
            for (const Schema& a : all[i])
                for (const Schema& b : all[j])
                    if (!excludes(a, b, place, 0, true)) return false;
        }
    }
    return true;
}

}  // namespace refold
