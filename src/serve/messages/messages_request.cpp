#include "serve/messages/messages_request.h"

#include "serve/conversation/content_text.h"
#include "serve/conversation/function_fields.h"
#include "serve/conversation/template_fields.h"
#include "serve/output_format_fields.h"
#include "serve/reply.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using Mode = ToolChoice::Mode;

constexpr const char* kMessages = "messages";

// The blocks of a message; a text is one block.
Json blocks_of(const Json& message, const std::string& where) {
    const auto content = message.find("content");
    if (content == message.end()) refuse(kMessages, "{}: 'content' is missing", where);
    if (content->is_string()) return Json::array({{{"type", "text"}, {"text", *content}}});
    if (!content->is_array())
        refuse(kMessages, "{}: 'content': got {}, expected a text or an array of blocks", where,
               shown(*content));
    return *content;
}

void add_text(Json& message, const char* key, const std::string& text) {
    std::string& to = message[key].get_ref<std::string&>();
    to += (to.empty() ? "" : "\n") + text;
}

void read_assistant(const Json& blocks, const std::string& where, Json& messages) {
    Json out = {{"role", "assistant"}, {"content", ""}};
    for (const Json& block : blocks) {
        const std::string type = text_at(block, "type", kMessages, where);
        if (type == "text") {
            add_text(out, "content", text_at(block, "text", kMessages, where));
        } else if (type == "thinking") {
            if (!out.contains("reasoning_content")) out["reasoning_content"] = "";
            add_text(out, "reasoning_content", text_at(block, "thinking", kMessages, where));
        } else if (type == "tool_use") {
            const std::string id = text_at(block, "id", kMessages, where);
            const std::string name = text_at(block, "name", kMessages, where);
            add_call(out, id, name, dump(block.value("input", Json())), kMessages, where);
        } else if (type != "redacted_thinking") {  // another service's, that only it can read
            refuse(kMessages, "{}: a block of type '{}' is not supported", where, type.substr(0, 60));
        }
    }
    messages.push_back(std::move(out));
}

// Results of tools become messages of their own, before the text.
void read_user(const Json& blocks, const std::string& where, Json& messages) {
    Json out = {{"role", "user"}, {"content", ""}};
    bool text = false;
    for (const Json& block : blocks) {
        const std::string type = text_at(block, "type", kMessages, where);
        if (type == "text") {
            add_text(out, "content", text_at(block, "text", kMessages, where));
            text = true;
        } else if (type == "tool_result") {
            messages.push_back(
                {{"role", "tool"},
                 {"content", content_text(block.value("content", Json("")), {"text"}, kMessages, where)},
                 {"tool_call_id", text_at(block, "tool_use_id", kMessages, where)}});
        } else {
            refuse(kMessages, "{}: a block of type '{}' is not supported - this server takes text", where,
                   type.substr(0, 60));
        }
    }
    if (text || blocks.empty()) messages.push_back(std::move(out));
}

void read_conversation(Fields& fields, Json& messages) {
    if (const Json system = fields.ordered("system"); !system.is_null())
        messages.push_back(
            {{"role", "system"}, {"content", content_text(system, {"text"}, "system", "system")}});
    const Json given = fields.ordered(kMessages, kMostMessageValues);
    if (!given.is_array() || given.empty())
        refuse(kMessages, "got {}, expected an array of at least one message", shown(given));
    size_t index = 0;
    for (const Json& message : given) {
        const std::string where = fmt::format("message {}", index++);
        if (!message.is_object()) refuse(kMessages, "{}: got {}, expected an object", where, shown(message));
        const std::string role = text_at(message, "role", kMessages, where);
        const Json blocks = blocks_of(message, where);
        for (const Json& block : blocks)
            if (!block.is_object())
                refuse(kMessages, "{}: a block is {}, expected an object", where, shown(block));
        if (role == "assistant") {
            read_assistant(blocks, where, messages);
        } else if (role == "user") {
            read_user(blocks, where, messages);
        } else {
            refuse(kMessages, "{}: got role '{}', expected user or assistant", where, role.substr(0, 60));
        }
    }
    complete_messages(messages, kMessages);
}

ToolChoice chosen_tools(const Json& given) {
    constexpr const char* kField = "tool_choice";
    ToolChoice out;
    if (given.is_null()) return out;
    if (!given.is_object()) refuse(kField, "got {}, expected an object", shown(given));
    const std::string type = text_at(given, "type", kField, "a choice");
    if (type == "none") {
        out.mode = Mode::none;
    } else if (type == "any" || type == "tool") {
        out.mode = Mode::required;
        if (type == "tool") out.allowed = {text_at(given, "name", kField, "a choice")};
    } else if (type != "auto") {
        refuse(kField, "got '{}', expected auto, any, tool or none", type.substr(0, 60));
    }
    const Json single = given.value("disable_parallel_tool_use", Json(false));
    if (!single.is_boolean()) refuse(kField, "'disable_parallel_tool_use': got {}", shown(single));
    out.several = single == false && type != "tool";
    return out;
}

void read_tools(Fields& fields, MessagesRequest& out) {
    constexpr const char* kField = "tools";
    if (Json given = fields.ordered(kField); !given.is_null()) {
        if (!given.is_array()) refuse(kField, "got {}, expected an array", shown(given));
        for (Json& tool : given) {
            if (!tool.is_object()) refuse(kField, "got {}, expected an object", shown(tool));
            const std::string type = tool.value("type", Json("custom")) == "custom"
                                         ? "custom"
                                         : text_at(tool, "type", kField, "a tool");
            if (type != "custom")
                refuse(kField, "type '{}' is not supported - this server knows custom tools",
                       type.substr(0, 60));
            tool.erase("cache_control");  // prompts that begin alike are computed once anyway
            out.tools.push_back(read_tool(tool, "input_schema"));
        }
    }
    out.choice = chosen_tools(fields.ordered("tool_choice"));
    check_tools(out.tools, out.choice, kField, "tool_choice");
}

// {"type": "enabled" | "adaptive" | "disabled"}. How much the model thinks is its own affair.
void read_thinking(Fields& fields, MessagesRequest& out) {
    constexpr const char* kField = "thinking";
    const Json given = fields.ordered(kField);
    if (given.is_null()) return;
    if (!given.is_object()) refuse(kField, "got {}, expected an object", shown(given));
    const std::string type = text_at(given, "type", kField, "thinking");
    if (type != "enabled" && type != "adaptive" && type != "disabled")
        refuse(kField, "got '{}', expected enabled, adaptive or disabled", type.substr(0, 60));
    out.thinking = type != "disabled";
    if (!out.thinking) out.variables["enable_thinking"] = false;
}

// {"format": see typed_format()}
void read_output(Fields& fields, MessagesRequest& out) {
    constexpr const char* kField = "output_config";
    const Json given = fields.ordered(kField);
    if (given.is_null()) return;
    if (!given.is_object()) refuse(kField, "got {}, expected an object", shown(given));
    for (const auto& [name, value] : given.items()) {
        if (value.is_null()) continue;
        if (name == "format") {
            out.options.format = typed_format(value, kField);
        } else {
            refuse(kField, "'{}': got {}, which is not supported", name.substr(0, 60), shown(value));
        }
    }
}

MessagesRequest parse(std::string_view body, bool generates) {
    Fields fields(body);
    MessagesRequest out;
    read_generation(fields, out);
    if (out.n != 1) refuse("n", "got {}, expected 1: a message is one answer", out.n);
    read_conversation(fields, out.messages);
    read_tools(fields, out);
    read_thinking(fields, out);
    read_output(fields, out);
    if (fields.find("stop_sequences") != nullptr) {
        if (!out.options.stop.empty()) refuse("stop", "another name of 'stop_sequences' - give one of them");
        out.options.stop = stop_texts(fields, "stop_sequences");
    }
    out.max_tokens = fields.integer("max_tokens", 1, INT64_MAX);
    if (generates && !out.max_tokens) refuse("max_tokens", "missing - give the most tokens of the answer");
    fields.ignore("cache_control");  // as in tools
    fields.refuse_the_rest();
    return out;
}

const char* error_type(int status) {
    switch (status) {
        case 401: return "authentication_error";
        case 403: return "permission_error";
        case 404: return "not_found_error";
        case 413: return "request_too_large";
        case 429: return "rate_limit_error";
        case 503: return "overloaded_error";
        case 504: return "timeout_error";
        default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

}  // namespace

MessagesRequest parse_messages_request(std::string_view body) { return parse(body, true); }
MessagesRequest parse_count_tokens_request(std::string_view body) { return parse(body, false); }

std::string messages_error_body(const ApiError& error) {
    return dump({{"type", "error"},
                 {"error", {{"type", error_type(error.status)}, {"message", error.message}}}}) +
           "\n";
}

}  // namespace refold
