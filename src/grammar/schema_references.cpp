#include "grammar/schema_references.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>

namespace refold {
namespace {

using Schema = nlohmann::ordered_json;

constexpr std::array kOfASchema = {"items",
                                   "additionalItems",
                                   "unevaluatedItems",
                                   "contains",
                                   "additionalProperties",
                                   "unevaluatedProperties",
                                   "propertyNames",
                                   "not",
                                   "if",
                                   "then",
                                   "else",
                                   "contentSchema"};
constexpr std::array kOfAList = {"allOf", "anyOf", "oneOf", "prefixItems", "items"};
constexpr std::array kOfNames = {"properties",  "patternProperties", "$defs",
                                 "definitions", "dependentSchemas",  "dependencies"};

std::string escaped(std::string_view name) {
    std::string out;
    for (const char c : name) out += c == '~' ? "~0" : c == '/' ? "~1" : c == '%' ? "%25" : std::string(1, c);
    return out;
}

// RFC 3986, 5.2, without "." and "..".
std::string resolved(const std::string& base, const std::string& reference) {
    const size_t scheme = base.find("://");
    if (reference.empty() || reference[0] == '#') return base + reference;
    if (reference.find("://") != std::string::npos || reference.starts_with("urn:")) return reference;
    if (reference[0] == '/')
        return base.substr(0, scheme == std::string::npos ? 0 : base.find('/', scheme + 3)) + reference;
    return base.substr(0, base.rfind('/') + 1) + reference;
}

class References {
public:
    // Rewrites `root`.
    static void resolve(Schema& root) { References().run(root); }

private:
    void run(Schema& root) {
        const std::string draft = root.is_object() ? root.value("$schema", Schema("")).dump() : "";
        modern_ = draft.find("/20") != std::string::npos;
        old_ = draft.find("/draft-0") != std::string::npos;
        places_[""] = "";
        collect(root, "", "");
        rewrite(root, "");
    }

    std::string base_of(const Schema& schema, const std::string& base) const {
        if (!schema.contains("$id") || !schema["$id"].is_string() || (schema.contains("$ref") && !modern_))
            return base;
        const std::string id = resolved(base, schema["$id"].get<std::string>());
        return id.substr(0, id.find('#'));
    }

    template <typename Visit>
    static void for_each_part(Schema& schema, const Visit& visit) {
        for (auto& [key, value] : schema.items()) {
            const auto is_one_of = [&](const auto& keys) {
                return std::find(keys.begin(), keys.end(), key) != keys.end();
            };
            if (value.is_object() && is_one_of(kOfASchema)) visit(value, "/" + escaped(key));
            const bool names = value.is_object() && is_one_of(kOfNames);
            if (!names && !(value.is_array() && is_one_of(kOfAList))) continue;
            size_t i = 0;
            for (auto& [name, part] : value.items())
                visit(part, fmt::format("/{}/{}", escaped(key), names ? escaped(name) : std::to_string(i++)));
        }
    }

    void collect(Schema& schema, const std::string& outer, const std::string& place) {
        if (!schema.is_object()) return;
        const std::string base = base_of(schema, outer);
        if (base != outer) places_.emplace(base, place);
        for (const char* key : {"$anchor", "$dynamicAnchor", "$id"}) {
            if (!schema.contains(key) || !schema[key].is_string()) continue;
            const auto name = schema[key].get<std::string>();
            if (key != std::string_view("$id")) places_.emplace(base + "#" + name, place);
            if (key == std::string_view("$id") && name.find('#') != std::string::npos)
                places_.emplace(resolved(outer, name), place);
        }
        for_each_part(schema, [&](Schema& part, const std::string& at) { collect(part, base, place + at); });
    }

    void rewrite(Schema& schema, const std::string& outer) {
        if (!schema.is_object()) return;
        const std::string base = base_of(schema, outer);
        if (schema.contains("$ref") && schema["$ref"].is_string()) {
            const std::string whole = resolved(base, schema["$ref"].get<std::string>());
            const size_t mark = std::min(whole.find('#'), whole.size());
            const std::string fragment = mark < whole.size() ? whole.substr(mark + 1) : "";
            const bool pointer = fragment.empty() || fragment[0] == '/';
            const auto at = places_.find(pointer ? whole.substr(0, mark) : whole);
            if (at != places_.end()) schema["$ref"] = "#" + at->second + (pointer ? fragment : "");
            if (old_) drop_siblings(schema);
        }
        for_each_part(schema, [&](Schema& part, const std::string&) { rewrite(part, base); });
    }

    // They say nothing, but definitions are there still.
    static void drop_siblings(Schema& schema) {
        Schema out = Schema::object();
        for (const auto& [key, value] : schema.items())
            if (key == "$ref" || key == "definitions" || key == "$defs") out[key] = value;
        schema = std::move(out);
    }

    bool modern_ = false, old_ = false;          // by "$schema", which may be absent
    std::map<std::string, std::string> places_;  // of documents and names
};

}  // namespace

nlohmann::ordered_json with_local_references(const nlohmann::ordered_json& root) {
    Schema out = root;
    References::resolve(out);
    return out;
}

}  // namespace refold
