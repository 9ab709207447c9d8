#include "serve/chat_request.h"

#include "core/json_number.h"
#include "serve/conversation/content_text.h"
#include "serve/conversation/function_fields.h"
#include "serve/conversation/template_fields.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

std::string message_text(const BodyValue& value, const std::string& where, const std::string& field) {
    if (!value.is_string())
        refuse("messages", "{}: '{}': got {}, expected a text", where, field, shown(value));
    return value.get<std::string>();
}

void read_calls(const BodyValue& calls, const std::string& where, Json& out) {
    const auto missing = [&](const char* what) {
        refuse("messages", "{}: a call in 'tool_calls' needs {}", where, what);
    };
    if (!calls.is_array())
        refuse("messages", "{}: 'tool_calls': got {}, expected an array", where, shown(calls));
    for (const BodyValue& call : calls) {
        if (!call.is_object() || call.value("type", BodyValue("function")) != "function")
            missing("the type function");
        const BodyValue id = call.value("id", BodyValue()), function = call.value("function", BodyValue());
        if (!id.is_string()) missing("an 'id'");
        if (!function.is_object()) missing("a 'function'");
        const BodyValue name = function.value("name", BodyValue());
        const BodyValue arguments = function.value("arguments", BodyValue(""));
        if (!name.is_string()) missing("a 'name'");
        add_call(out, id, name, arguments.is_string() ? arguments.get<std::string>() : exact_dump(arguments),
                 "messages", where);
    }
}

Json read_message(const BodyValue& message, size_t index) {
    const std::string where = fmt::format("message {}", index);
    if (!message.is_object()) refuse("messages", "{}: got {}, expected an object", where, shown(message));
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string()) refuse("messages", "{}: 'role' is missing", where);
    const bool assistant = *role == "assistant", tool = *role == "tool";
    const bool known = assistant || tool || *role == "system" || *role == "user" || *role == "developer";
    if (!known)
        refuse("messages", "{}: got role {}, expected system, user, assistant or tool", where, shown(*role));
    Json out = {{"role", *role == "developer" ? "system" : role->get_ref<const std::string&>()},
                {"content", ""}};
    bool content = false;
    for (const auto& [field, value] : message.items()) {
        if (field == "role" || value.is_null()) continue;
        if (field == "content") {
            out["content"] = content_text(value, {"text"}, "messages", where);
            content = true;
        } else if (field == "name") {
            out["name"] = message_text(value, where, field);
        } else if (tool && field == "tool_call_id") {
            out["tool_call_id"] = message_text(value, where, field);
        } else if (assistant && (field == "reasoning_content" || field == "reasoning")) {
            out["reasoning_content"] = message_text(value, where, field);
        } else if (assistant && field == "tool_calls") {
            read_calls(value, where, out);
        } else if (!value.is_array() || !value.empty()) {  // annotations: []
            refuse("messages", "{}: '{}' is not supported", where, field.substr(0, 60));
        }
    }
    if (tool && !out.contains("tool_call_id")) refuse("messages", "{}: 'tool_call_id' is missing", where);
    if (!content && !assistant) refuse("messages", "{}: 'content' is missing", where);
    return out;
}

}  // namespace

ChatRequest parse_chat_request(std::string_view body) {
    Fields fields(body);
    ChatRequest out;
    read_generation(fields, out);
    const BodyValue* messages = fields.find("messages");
    if (messages == nullptr) refuse("messages", "missing - give an array of messages");
    if (!messages->is_array() || messages->empty())
        refuse("messages", "got {}, expected an array of at least one message", shown(*messages));
    for (const BodyValue& message : *messages)
        out.messages.push_back(read_message(message, out.messages.size()));
    complete_messages(out.messages, "messages");
    OfferedTools offered = read_functions(fields, FunctionStyle::wrapped);
    out.tools = std::move(offered.tools);
    out.choice = std::move(offered.choice);
    out.variables = template_variables(fields);
    const auto older = fields.integer("max_tokens", 1, INT64_MAX);
    const auto newer = fields.integer("max_completion_tokens", 1, INT64_MAX);
    if (newer && older && *newer != *older)
        refuse("max_completion_tokens", "got {}, and {} in 'max_tokens', another name of it", *newer, *older);
    out.max_tokens = newer ? newer : older;
    const auto top = fields.integer("top_logprobs", 0, kMostLogprobs);
    const bool logprobs = fields.boolean("logprobs", false);
    if (top && !logprobs) refuse("top_logprobs", "only allowed together with 'logprobs': true");
    if (logprobs) out.options.logprobs = static_cast<int>(top.value_or(0));
    fields.refuse_the_rest();
    return out;
}

}  // namespace refold
