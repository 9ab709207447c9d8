// Keywords of a JSON Schema that hold together, without references and alternatives.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace refold {

// Keys keep their order, which is that of documents.
using Schema = nlohmann::ordered_json;

inline const Schema kNone = Schema::array();
inline const Schema kEmpty = Schema::object();
inline const Schema kAny = true;
inline const Schema kNothing = false;

// Throws Error(usage) for a schema that cannot be enforced: "#PLACE: REASON".
[[noreturn]] void refuse_schema(const std::string& place, const std::string& reason);

// Whether a key says nothing of the documents ("title").
bool is_annotation(std::string_view key);
// Keys that are none.
size_t n_keywords(const Schema& schema);
// Values and parts, however deep.
size_t n_values(const Schema& schema);

// Objects are equal in any order of their keys.
bool equal(const Schema& a, const Schema& b);
bool has(const Schema& values, const Schema& value);
// A part of an object, or else `otherwise`.
const Schema& part(const Schema& keywords, const char* key, const Schema& otherwise);
// The schema of an array's item i.
const Schema& item_at(const Schema& keywords, size_t i);

// 1.0 is an integer.
bool is_of_type(const Schema& value, const std::string& type);
// The types that keywords allow; all where they do not say. "number" includes "integer".
std::vector<std::string> types_of(const Schema& keywords);
// Their type where they do not say it: that of the first keyword that speaks of one type only. Null: none
// does.
const char* implied_type(const Schema& keywords);
// The types of documents that are generated: the implied one where they do not say.
std::vector<std::string> narrow_types_of(const Schema& keywords);
std::vector<std::string> common_types(const std::vector<std::string>& a, const std::vector<std::string>& b);

struct Bounds {
    const char* type;
    const char* least;
    const char* most;
};
inline constexpr std::array kBounds{
    Bounds{"number", "minimum", "maximum"}, Bounds{"string", "minLength", "maxLength"},
    Bounds{"array", "minItems", "maxItems"}, Bounds{"object", "minProperties", "maxProperties"}};

// Draft 7 calls the items of a tuple "items" and what follows them "additionalItems": they become prefixItems
// and items.
void rename_tuple(Schema& schema);
// Throws for keywords whose values are none. Counts become integers: 2.0 is one in JSON Schema.
void check_kinds(Schema& keywords, const std::string& place);

// What two schemas say together, for SchemaReader::alternatives().
Schema all_of(const Schema& a, const Schema& b);
// What keywords say together; none: they exclude each other by type or values. Schemas within them become an
// all_of() of both. Throws for what cannot be said by keywords.
std::optional<Schema> merged(Schema a, const Schema& b, const std::string& place);
// What keywords `b` say and `a` do not.
Schema beyond(const Schema& a, const Schema& b);

}  // namespace refold
