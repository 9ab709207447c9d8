#include "serve/output_format_fields.h"

#include "core/error.h"
#include "core/json_number.h"
#include "grammar/grammar.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

std::string format_text(const Json& value, const char* field) {
    if (!value.is_string()) refuse(field, "got {}, expected a text", shown(value));
    return value.get<std::string>();
}

OutputFormat choice_format(const Json& choices, const char* field) {
    if (!choices.is_array()) refuse(field, "got {}, expected an array of texts", shown(choices));
    OutputFormat out{.kind = OutputFormat::Kind::choice};
    for (const Json& choice : choices) out.choices.push_back(format_text(choice, field));
    return out;
}

// Of a schema of objects that cannot be enforced, a client that says `strict: false` gets any object.
bool gets_any_object(const Json& holder) {
    if (holder.value("strict", Json()) != false) return false;
    const Json& schema = holder["schema"];
    if (!schema.is_object() || schema.value("type", Json("object")) != "object") return false;
    try {
        checked_schema(exact_dump(schema));
        return false;
    } catch (const Error&) {
        return true;
    }
}

// What a format, or its "json_schema", says beside its type.
void check_members(const Json& holder, const char* field) {
    for (const auto& [name, value] : holder.items()) {
        const bool known = name == "type" || name == "schema" || name == "json_schema" || value.is_null() ||
                           ((name == "name" || name == "description") && value.is_string()) ||
                           (name == "strict" && value.is_boolean());
        if (!known) refuse(field, "'{}': got {}, which is not supported", name.substr(0, 60), shown(value));
    }
}

// A format by the name that vLLM has for it.
OutputFormat named_format(const std::string& name, const Json& value, const char* field) {
    if (name == "json") return schema_format(value, field);
    if (name == "regex") return {.kind = OutputFormat::Kind::regex, .text = format_text(value, field)};
    if (name == "choice") return choice_format(value, field);
    if (name == "grammar") return {.kind = OutputFormat::Kind::grammar, .text = format_text(value, field)};
    if (name == "json_object" && value == true) return {.kind = OutputFormat::Kind::json};
    refuse(field, "'{}' is not supported; known: json, json_object, regex, choice, grammar",
           name.substr(0, 60));
}

}  // namespace

OutputFormat typed_format(const Json& given, const char* field) {
    if (!given.is_object()) refuse(field, "got {}, expected an object", shown(given));
    const std::string type = given.contains("type") ? format_text(given["type"], field) : "";
    if (type != "text" && type != "json_object" && type != "json_schema")
        refuse(field, "got type '{}', expected text, json_object or json_schema", type.substr(0, 60));
    check_members(given, field);
    if (type == "text") return {};
    const auto has = [](const Json& object, const char* name) {
        return object.is_object() && object.contains(name) && !object[name].is_null();
    };
    const Json& holder = has(given, "json_schema") ? given["json_schema"] : given;
    if (has(holder, "schema")) {
        check_members(holder, field);
        if (gets_any_object(holder)) return {.kind = OutputFormat::Kind::json};
        return schema_format(holder["schema"], field);
    }
    if (type == "json_schema") refuse(field, "'json_schema' needs a 'schema'");
    return {.kind = OutputFormat::Kind::json};
}

OutputFormat schema_format(const Json& schema, const char* field) {
    if (schema.is_string())
        return {.kind = OutputFormat::Kind::json_schema, .text = schema.get<std::string>(), .field = field};
    if (!schema.is_object() && !schema.is_boolean())
        refuse(field, "got {}, expected a JSON Schema", shown(schema));
    return {.kind = OutputFormat::Kind::json_schema, .text = exact_dump(schema), .field = field};
}

OutputFormat output_format(Fields& fields) {
    OutputFormat out;
    const char* by = nullptr;
    const auto set = [&](OutputFormat format, const char* field) {
        if (format.kind == OutputFormat::Kind::any) return;
        if (by != nullptr) refuse(field, "another format of the output than '{}' - give one of them", by);
        out = std::move(format);
        out.field = by = field;
    };
    const auto read = [&](const char* field, auto make) {
        if (const Json value = fields.ordered(field); !value.is_null()) set(make(value), field);
    };
    read("response_format", [](const Json& value) { return typed_format(value, "response_format"); });
    read("json_schema", [](const Json& value) { return schema_format(value, "json_schema"); });
    constexpr std::pair<const char*, const char*> kNamed[] = {{"grammar", "grammar"},
                                                              {"guided_json", "json"},
                                                              {"guided_regex", "regex"},
                                                              {"guided_choice", "choice"},
                                                              {"guided_grammar", "grammar"}};
    for (const auto& [field, name] : kNamed)
        read(field,
             [&, name = name, field = field](const Json& value) { return named_format(name, value, field); });
    if (const Json given = fields.ordered("structured_outputs"); !given.is_null()) {
        if (!given.is_object()) refuse("structured_outputs", "got {}, expected an object", shown(given));
        for (const auto& [name, value] : given.items()) {
            if (!value.is_null()) set(named_format(name, value, "structured_outputs"), "structured_outputs");
        }
    }
    return out;
}

}  // namespace refold
