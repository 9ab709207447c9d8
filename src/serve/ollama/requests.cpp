#include "serve/ollama/requests.h"

#include <deque>

#include "core/json_number.h"
#include "serve/conversation/function_fields.h"
#include "serve/conversation/template_fields.h"
#include "serve/ollama/model.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

// The field 'think': true, false or a level. Returns variables of the template.
Json read_think(Fields& fields) {
    Json variables = Json::object();
    const BodyValue* const think = fields.find("think");
    if (think == nullptr) return variables;
    if (think->is_string()) {
        set_effort(variables, think->get<std::string>(), "think");
    } else if (think->is_boolean()) {
        variables["enable_thinking"] = think->get<bool>();
    } else {
        refuse("think", "got {}, expected true, false or a level", shown(*think));
    }
    return variables;
}

std::string member_text(const BodyValue& value, const std::string& where, const char* member) {
    const auto found = value.find(member);
    if (found == value.end() || found->is_null()) return "";
    if (!found->is_string())
        refuse("messages", "{}: '{}': got {}, expected a text", where, member, shown(*found));
    return found->get<std::string>();
}

// Messages of one request. Ollama's calls and their results may come without ids, in the same order.
class MessageReader {
public:
    Json read(const BodyValue& message, size_t index) {
        const std::string where = fmt::format("message {}", index);
        if (!message.is_object()) refuse("messages", "{}: got {}, expected an object", where, shown(message));
        const std::string role = member_text(message, where, "role");
        if (role != "system" && role != "user" && role != "assistant" && role != "tool")
            refuse("messages", "{}: got role '{}', expected system, user, assistant or tool", where,
                   role.substr(0, 60));
        Json out = {{"role", role}, {"content", member_text(message, where, "content")}};
        for (const auto& [field, value] : message.items()) {
            if (field == "role" || field == "content" || value.is_null()) continue;
            if (field == "thinking" && role == "assistant") {
                out["reasoning_content"] = member_text(message, where, "thinking");
            } else if (field == "tool_calls" && role == "assistant") {
                read_calls(value, where, out);
            } else if ((field == "tool_name" || field == "tool_call_id") && role == "tool") {
                out[field == "tool_name" ? "name" : "tool_call_id"] =
                    member_text(message, where, field.c_str());
            } else if (!value.is_array() || !value.empty()) {  // images: []
                refuse("messages", "{}: '{}' is not supported", where, field.substr(0, 60));
            }
        }
        if (role == "tool") answer_call(out);
        return out;
    }

private:
    void read_calls(const BodyValue& calls, const std::string& where, Json& message) {
        if (!calls.is_array()) refuse("messages", "{}: 'tool_calls': expected an array", where);
        for (const BodyValue& call : calls) {
            const auto function = call.is_object() ? call.find("function") : call.end();
            if (!call.is_object() || function == call.end() || !function->is_object())
                refuse("messages", "{}: a call needs a 'function'", where);
            std::string id = member_text(call, where, "id");
            if (id.empty()) id = fmt::format("call_{}", ++calls_);
            const auto arguments = function->find("arguments");
            add_call(message, id, member_text(*function, where, "name"),
                     arguments == function->end() ? "" : exact_dump(*arguments), "messages", where);
            open_.push_back(std::move(id));
        }
    }

    void answer_call(Json& message) {
        std::string id = message.value("tool_call_id", "");
        if (id.empty() && !open_.empty()) id = open_.front();
        std::erase(open_, id);
        message["tool_call_id"] = id;
    }

    int64_t calls_ = 0;
    std::deque<std::string> open_;  // ids of calls without results
};

// Fields of what is not done here, accepted where they ask for nothing.
void refuse_images(Fields& fields) {
    const BodyValue* const images = fields.find("images");
    if (images != nullptr && !(images->is_array() && images->empty()))
        refuse("images", "this server takes text - leave it out");
}

}  // namespace

OllamaChatRequest parse_ollama_chat(std::string_view body) {
    Fields fields(body);
    OllamaChatRequest out;
    out.model = untagged(fields.text("model"));
    read_options(fields, out);
    const BodyValue* const messages = fields.find("messages");
    if (messages != nullptr && !messages->is_array())
        refuse("messages", "got {}, expected an array of messages", shown(*messages));
    if (messages != nullptr) {
        MessageReader reader;
        for (const BodyValue& message : *messages)
            out.messages.push_back(reader.read(message, out.messages.size()));
    }
    if (!out.messages.empty()) complete_messages(out.messages, "messages");
    OfferedTools offered = read_functions(fields, FunctionStyle::wrapped);
    out.tools = std::move(offered.tools);
    out.choice = std::move(offered.choice);
    out.variables = read_think(fields);
    fields.refuse_the_rest();
    return out;
}

OllamaGenerateRequest parse_ollama_generate(std::string_view body) {
    Fields fields(body);
    OllamaGenerateRequest out;
    out.model = untagged(fields.text("model"));
    read_options(fields, out);
    out.prompt = fields.text("prompt");
    out.system = fields.text("system");
    out.raw = fields.boolean("raw", false);
    if (out.raw && !out.system.empty()) refuse("system", "not used with 'raw' - put it into the prompt");
    out.suffix = fields.text("suffix");
    if (!out.suffix.empty() && !out.system.empty()) refuse("system", "not used with 'suffix'");
    if (!fields.text("template").empty())
        refuse("template", "templates of requests are not supported - use 'raw' and a whole prompt");
    refuse_images(fields);
    out.variables = read_think(fields);
    fields.refuse_the_rest();
    return out;
}

}  // namespace refold
