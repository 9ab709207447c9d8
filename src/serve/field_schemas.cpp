#include "serve/field_schemas.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace refold {
namespace {

constexpr const char* kAnyObject = R"({"type": "object"})";
constexpr const char* kTextsSchema = R"({"type": "array", "items": {"type": "string"}})";
constexpr const char* kTextOrTexts =
    R"({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})";
constexpr const char* kSchemaSchema = R"({"description": "a JSON Schema, also as a text", "oneOf": [
    {"type": "object"}, {"type": "boolean"}, {"type": "string"}]})";
constexpr const char* kTokensSchema = R"({"type": "array", "items": {"type": "integer", "minimum": 0}})";
// A text, texts, token ids or arrays of token ids.
constexpr const char* kPrompts =
    R"({"oneOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"oneOf": [
    {"type": "string"}, {"type": "integer", "minimum": 0},
    {"type": "array", "items": {"type": "integer", "minimum": 0}}]}}]})";
constexpr const char* kTextOrDocument = R"({"oneOf": [{"type": "string"},
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}]})";
constexpr const char* kMessagesSchema = R"({"type": "array", "minItems": 1, "items": {"type": "object",
    "properties": {"role": {"type": "string"}, "content": {"oneOf": [{"type": "string"}, {"type": "null"},
    {"type": "array", "items": {"type": "object"}}]}}, "required": ["role"]}})";

constexpr auto kSchemas = std::to_array<FieldSchema>({
    {"chat_template_kwargs", kAnyObject},
    {"documents", R"({"type": "array", "minItems": 1, "items": {"oneOf": [{"type": "string"},
        {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}]}})"},
    {"grammar", R"({"type": "string", "description": "GBNF"})"},
    {"guided_choice", kTextsSchema},
    {"guided_grammar", R"({"type": "string"})"},
    {"guided_json", kSchemaSchema},
    {"guided_regex", R"({"type": "string"})"},
    {"include", kTextsSchema},
    {"input", kPrompts},
    {"input", R"({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]})",
     "/v1/responses"},
    {"json_schema", kSchemaSchema},
    {"logit_bias",
     R"({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}})"},
    {"format", R"({"oneOf": [{"enum": ["", "json"]}, {"type": "object"}]})"},
    {"images", R"({"type": "array", "maxItems": 0})"},
    {"messages", kMessagesSchema},
    {"output_config", kAnyObject},
    {"prompt", kPrompts, "/v1/completions"},
    {"query", kTextOrDocument},
    {"reasoning", kAnyObject},
    {"response_format",
     R"({"type": "object", "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}}})"},
    {"stop", kTextOrTexts},
    {"stop_sequences", kTextOrTexts},
    {"options.stop", kTextOrTexts},
    {"stop_token_ids", kTokensSchema},
    {"stream_options", R"({"type": "object", "properties": {"include_usage": {"type": "boolean"}}})"},
    {"structured_outputs", kAnyObject},
    {"system", R"({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]})"},
    {"text", kAnyObject},
    {"think", R"({"oneOf": [{"type": "boolean"}, {"enum": ["low", "medium", "high"]}]})"},
    {"thinking", kAnyObject},
    {"tokens", kTokensSchema},
    {"tool_choice", R"({"oneOf": [{"type": "string"}, {"type": "object"}]})"},
    {"tools", R"({"type": "array", "items": {"type": "object"}})"},
});

}  // namespace

std::span<const FieldSchema> field_schemas() { return kSchemas; }

const FieldSchema* find_field_schema(const char* path, const char* name) {
    const FieldSchema* found = nullptr;
    for (const FieldSchema& schema : kSchemas) {
        if (std::string_view(schema.name) != name) continue;
        if (schema.path == nullptr && found == nullptr) found = &schema;
        if (schema.path != nullptr && std::string_view(schema.path) == path) return &schema;
    }
    return found;
}

}  // namespace refold
