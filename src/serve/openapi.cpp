#include "serve/openapi.h"

#include <algorithm>

#include "core/json_text.h"
#include "serve/endpoint.h"
#include "serve/field_schemas.h"
#include "serve/fields.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

// "post_v1_embeddings"
std::string operation_id(const Endpoint& endpoint) {
    std::string id = *endpoint.method == 'G' ? "get" : "post";
    for (const char c : std::string_view(endpoint.path))
        id += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    return id;
}

Json body_schema(const Endpoint& endpoint) {
    FieldRecorder recorder;
    endpoint.body.parse(endpoint.body.example);
    recorder.note_harmless();
    Json properties = Json::object();
    for (const auto& [field, schema] : recorder.fields()) {
        const FieldSchema* const known = find_field_schema(endpoint.path, field.c_str());
        Json described = schema.empty() && known != nullptr
                             ? parse_json<Json>(known->schema, "openapi", "a schema")
                             : schema;
        if (const size_t dot = field.find('.'); dot != std::string::npos) {
            Json& outer = properties[field.substr(0, dot)];
            outer["type"] = "object";
            outer["properties"][field.substr(dot + 1)] = std::move(described);
        } else if (!properties.contains(field)) {
            properties[field] = std::move(described);
        }
    }
    Json required = Json::array();
    const Json example = parse_json<Json>(endpoint.body.example, "openapi", "an example");
    for (const auto& [field, value] : example.items()) required.push_back(field);
    Json schema = {{"type", "object"}, {"properties", std::move(properties)}};
    if (!required.empty()) schema["required"] = std::move(required);
    schema["examples"] = {example};
    return schema;
}

// The JSON Schema of values that look like this one, as Endpoint::answer_example says; `null`: of null.
Json schema_like(const Json& value, const Json& null = Json::object()) {
    if (value.is_null()) return null;
    if (value.is_string()) return {{"type", "string"}};
    if (value.is_boolean()) return {{"type", "boolean"}};
    if (value.is_number()) return {{"type", value.is_number_float() ? "number" : "integer"}};
    if (value.is_array()) {
        Json schema = {{"type", "array"}};
        if (!value.empty()) schema["items"] = schema_like(value[0], null);
        return schema;
    }
    Json properties = Json::object(), required = Json::array();
    for (const auto& [name, part] : value.items()) {
        const bool optional = name.ends_with('?');
        if (!optional) required.push_back(name);
        properties[name.substr(0, name.size() - (optional ? 1 : 0))] = schema_like(part, null);
    }
    Json schema = {{"type", "object"}, {"properties", std::move(properties)}};
    if (!required.empty()) schema["required"] = std::move(required);
    return schema;
}

Json content(const char* type, Json schema) { return {{type, {{"schema", std::move(schema)}}}}; }

Json operation(const Endpoint& endpoint, bool with_key) {
    Json out = {{"operationId", operation_id(endpoint)}, {"summary", endpoint.summary}};
    const bool json = std::string_view(endpoint.type) == "application/json";
    Json answer = content(
        endpoint.type, endpoint.answer_example != nullptr
                           ? schema_like(parse_json<Json>(endpoint.answer_example, "openapi", "an example"))
                           : Json{{"type", json ? "object" : "string"}});
    if (endpoint.body.stream_type != nullptr)
        answer.update(content(endpoint.body.stream_type, {{"type", "string"}}));
    const Json error = parse_json<Json>(endpoint.error(ApiError(400, "message")), "openapi", "an error");
    if (endpoint.body.parse != nullptr)
        out["requestBody"] = {{"required", true},
                              {"content", content("application/json", body_schema(endpoint))}};
    out["responses"] = {
        {"200", {{"description", "the answer"}, {"content", std::move(answer)}}},
        {"default",
         {{"description", "an error"},
          {"content", content("application/json", schema_like(error, {{"type", {"string", "null"}}}))}}}};
    if (with_key && !endpoint.open) out["security"] = Json::array({{{"key", Json::array()}}});
    return out;
}

}  // namespace

Json openapi(const std::string& version, bool with_key) {
    Json paths = Json::object();
    for (const Endpoint* const endpoint : endpoints()) {
        std::string path = endpoint->path;
        Json described = operation(*endpoint, with_key);
        if (path.ends_with('*')) {
            path.replace(path.size() - 1, 1, "{name}");
            described["parameters"] = {
                {{"name", "name"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}};
        }
        paths[path][*endpoint->method == 'G' ? "get" : "post"] = std::move(described);
    }
    Json out = {{"openapi", "3.1.0"},
                {"info", {{"title", "refold"}, {"version", version}}},
                {"servers", {{{"url", "/"}}}},
                {"paths", std::move(paths)}};
    if (with_key)
        out["components"] = {{"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}};
    return out;
}

}  // namespace refold
