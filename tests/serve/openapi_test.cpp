// The description of all endpoints says what their parsers take.
#include <algorithm>

#include "serve/endpoint.h"
#include "serve/field_schemas.h"
#include "serve/fields.h"
#include "serve/running_encoder.h"
#include "serve/running_server.h"

namespace refold {
namespace {

using Described = std::map<std::string, nlohmann::ordered_json>;

Described described(const Endpoint& endpoint) {
    FieldRecorder recorder;
    endpoint.body.parse(endpoint.body.example);
    recorder.note_harmless();
    return recorder.fields();
}

// The endpoint's example with one more field; "options.seed" is within an object.
std::string with_field(const Endpoint& endpoint, const std::string& field, const json& value) {
    json body = json::parse(endpoint.body.example);
    const size_t dot = field.find('.');
    if (dot == std::string::npos) {
        body[field] = value;
    } else {
        body[field.substr(0, dot)][field.substr(dot + 1)] = value;
    }
    return body.dump();
}

// The field that an error names, or its code; empty when the body is taken.
std::pair<std::string, std::string> problem(const Endpoint& endpoint, const std::string& body) {
    try {
        endpoint.body.parse(body);
    } catch (const ApiError& error) {
        EXPECT_EQ(error.status, 400) << error.message;
        return {error.param, error.code};
    }
    return {};
}

TEST(OpenApi, HasEveryEndpoint) {
    RunningServer running;
    const json all = running.get("/openapi.json").json();
    EXPECT_EQ(all["openapi"], "3.1.0");
    EXPECT_FALSE(all.contains("components"));
    std::set<std::string> ids;
    for (const Endpoint* const endpoint : endpoints()) {
        const bool get = *endpoint->method == 'G';
        std::string path = endpoint->path;
        if (path.ends_with('*')) path.replace(path.size() - 1, 1, "{name}");
        const json& operation = all.at("paths").at(path).at(get ? "get" : "post");
        EXPECT_FALSE(operation["summary"].get<std::string>().empty()) << path;
        EXPECT_TRUE(ids.insert(operation["operationId"]).second) << path;
        EXPECT_EQ(operation.contains("requestBody"), !get) << path;
        EXPECT_EQ(operation["responses"]["200"]["content"].begin().key(), endpoint->type) << path;
    }
    const json chat = all["paths"]["/v1/chat/completions"]["post"];
    const json schema = chat["requestBody"]["content"]["application/json"]["schema"];
    EXPECT_EQ(schema["required"], json{"messages"});
    EXPECT_EQ(schema["properties"]["temperature"],
              (json{{"type", "number"}, {"minimum", 0}, {"maximum", 2}}));
    EXPECT_TRUE(chat["responses"]["200"]["content"].contains("text/event-stream"));
    EXPECT_TRUE(chat["responses"]["default"]["content"]["application/json"]["schema"]["properties"]["error"]
                    ["properties"]
                        .contains("param"));
}

TEST(OpenApi, SaysWhatNeedsAKey) {
    RunningOptions setup;
    setup.server.api_keys = {{"secret"}};
    RunningServer running(setup);
    const json all = running.get("/openapi.json").json();
    EXPECT_TRUE(all["components"]["securitySchemes"].contains("key"));
    EXPECT_TRUE(all["paths"]["/v1/models"]["get"].contains("security"));
    EXPECT_FALSE(all["paths"]["/health"]["get"].contains("security"));
}

TEST(OpenApi, NoFieldIsWithoutASchema) {
    std::set<const FieldSchema*> used;
    for (const Endpoint* const endpoint : endpoints()) {
        if (endpoint->body.parse == nullptr) continue;
        const auto all = described(*endpoint);
        for (const auto& [field, schema] : all) {
            const auto inner = all.lower_bound(field + ".");
            const bool outer = inner != all.end() && inner->first.starts_with(field + ".");
            if (!schema.empty() || outer) continue;
            const FieldSchema* const known = find_field_schema(endpoint->path, field.c_str());
            EXPECT_NE(known, nullptr) << endpoint->path << ": '" << field << "' needs a FieldSchema";
            if (known != nullptr) {
                EXPECT_TRUE(json::parse(known->schema).is_object());
                used.insert(known);
            }
        }
    }
    for (const FieldSchema& schema : field_schemas())
        EXPECT_TRUE(used.contains(&schema)) << schema.name << " is in no request";
}

// Both ways: what is described is read, and what is not is refused.
TEST(OpenApi, DescribesWhatIsRead) {
    for (const Endpoint* const endpoint : endpoints()) {
        if (endpoint->body.parse == nullptr) continue;
        EXPECT_EQ(problem(*endpoint, endpoint->body.example).first, "") << endpoint->path;
        for (const auto& [field, schema] : described(*endpoint)) {
            const std::string type = schema.value("type", "");
            if (type.empty()) continue;
            EXPECT_EQ(problem(*endpoint, with_field(*endpoint, field, json::object())).first, field)
                << endpoint->path << ": an object as '" << field << "'";
            for (const char* const bound : {"minimum", "maximum"}) {
                if (!schema.contains(bound)) continue;
                const double most = schema[bound].get<double>();
                if (std::abs(most) > 1e15) continue;
                const double beyond = most + (std::string(bound) == "minimum" ? -1 : 1);
                EXPECT_EQ(problem(*endpoint, with_field(*endpoint, field, beyond)).first, field)
                    << endpoint->path << ": " << beyond << " as '" << field << "'";
            }
        }
        EXPECT_EQ(problem(*endpoint, with_field(*endpoint, "no_such_field", 1)),
                  std::pair(std::string("no_such_field"), std::string("unknown_parameter")))
            << endpoint->path;
    }
}

// Where `value` is not what `schema` describes; empty where it is.
std::string contradiction(const json& value, const json& schema, const std::string& at) {
    static const std::map<std::string, json::value_t> kTypes = {{"string", json::value_t::string},
                                                                {"boolean", json::value_t::boolean},
                                                                {"object", json::value_t::object},
                                                                {"array", json::value_t::array}};
    if (!schema.contains("type")) return "";
    const std::string type = schema["type"];
    const bool fits = type == "integer"  ? value.is_number_integer()
                      : type == "number" ? value.is_number()
                                         : value.type() == kTypes.at(type);
    if (!fits) return at + " is no " + type + ": " + value.dump();
    if (type == "array") {
        for (const json& item : value) {
            std::string in = contradiction(item, schema.value("items", json::object()), at + "[]");
            if (!in.empty()) return in;
        }
    }
    if (type != "object" || schema["properties"].empty()) return "";
    for (const json& name : schema.value("required", json::array()))
        if (!value.contains(name)) return at + " has no " + name.dump();
    for (const auto& [name, part] : value.items()) {
        if (!schema["properties"].contains(name)) return at + "." + name + " is not described";
        std::string in = contradiction(part, schema["properties"][name], at + "." + name);
        if (!in.empty()) return in;
    }
    return "";
}

TEST(OpenApi, DescribesAnswers) {
    RunningServer running;
    const RunningEncoder embeds, scores("bert_score");
    const json all = running.get("/openapi.json").json()["paths"];
    size_t compared = 0;
    for (const Endpoint* const endpoint : endpoints()) {
        if (endpoint->answer_example == nullptr) continue;
        const std::string path = endpoint->path;
        HttpReply reply;
        if (*endpoint->method == 'G') {
            reply = running.get(path.ends_with('*') ? "/v1/models/org/fake" : path);
        } else {
            json body = json::parse(endpoint->body.example);
            if (path == "/api/chat" || path == "/api/generate") body["stream"] = false;
            if (body.contains("model")) body["model"] = "org/fake";
            reply = path.find("rerank") != std::string::npos  ? scores.post(path, body)
                    : path.find("embed") != std::string::npos ? embeds.post(path, body)
                                                              : running.post(path, body);
        }
        ASSERT_EQ(reply.status, 200) << path << reply.body;
        const std::string described = path.ends_with('*') ? "/v1/models/{name}" : path;
        const json& operation = all[described][*endpoint->method == 'G' ? "get" : "post"];
        const json& schema = operation["responses"]["200"]["content"]["application/json"]["schema"];
        EXPECT_EQ(contradiction(reply.json(), schema, path), "");
        if (path == "/api/chat" || path == "/api/generate") {  // loads the model
            EXPECT_EQ(contradiction(running.post(path, {{"stream", false}}).json(), schema, path), "");
        }
        ++compared;
    }
    EXPECT_GT(compared, 20U);
    // The test itself.
    const json schema = all["/tokenize"]["post"]["responses"]["200"]["content"]["application/json"]["schema"];
    EXPECT_EQ(contradiction({{"count", 1}, {"tokens", {1}}}, schema, ""), " has no \"max_model_len\"");
    EXPECT_EQ(contradiction({{"count", "1"}, {"max_model_len", 1}, {"tokens", {1}}}, schema, ""),
              ".count is no integer: \"1\"");
}

TEST(Props, AreThoseOfLlamaServer) {
    RunningServer running;
    const json props = running.get("/props").json();
    EXPECT_EQ(props["total_slots"], 8);
    EXPECT_EQ(props["model_path"], "org/fake");
    EXPECT_EQ(props["build_info"], "refold-0");
    EXPECT_EQ(props["chat_template"], tokenizer().chat_template());
    EXPECT_EQ(props["eos_token"], tokenizer().piece(*tokenizer().eos(), true));
    EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 256);
    const json& params = props["default_generation_settings"]["params"];
    EXPECT_EQ(params["temperature"], 1);
    EXPECT_EQ(params["repeat_last_n"], 64);
    EXPECT_EQ(running.get("/props?model=other").status, 404);
    RunningOptions setup;
    setup.chat_template = "{{ messages[0].content }}";
    RunningServer another(setup);
    EXPECT_EQ(another.get("/props").json()["chat_template"], "{{ messages[0].content }}");
    expect_error(running.post("/props", {{"default_generation_settings", 5}}), 405, "method_not_allowed",
                 "GET");
}

}  // namespace
}  // namespace refold
