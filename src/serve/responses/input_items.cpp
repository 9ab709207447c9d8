#include "serve/responses/input_items.h"

#include "serve/conversation/content_text.h"
#include "serve/conversation/conversation.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kInput = "input";

class Messages {
public:
    explicit Messages(Json& messages) : messages_(messages) {}

    void read(const Json& item, const std::string& where) {
        if (!item.is_object()) refuse(kInput, "{}: got {}, expected an object", where, shown(item));
        const std::string type =
            item.contains("type") ? text_at(item, "type", kInput, where) : std::string("message");
        if (type == "message") {
            read_message(item, where);
        } else if (type == "reasoning") {
            read_reasoning(item, where);
        } else if (type == "function_call") {
            const std::string id = text_at(item, "call_id", kInput, where);
            const std::string name = text_at(item, "name", kInput, where);
            add_call(assistant(), id, name, text_at(item, "arguments", kInput, where), kInput, where);
        } else if (type == "function_call_output") {
            const std::string id = text_at(item, "call_id", kInput, where);
            const Json output = item.value("output", Json());
            add({{"role", "tool"},
                 {"content", content_text(output, {"input_text", "text"}, kInput, where)},
                 {"tool_call_id", id}});
        } else {
            refuse(kInput, "{}: an item of type '{}' is not supported", where, type.substr(0, 60));
        }
    }

private:
    // The assistant's message that goes on; a new one where another role spoke last.
    Json& assistant() {
        if (!open_) add({{"role", "assistant"}, {"content", ""}});
        open_ = true;
        return messages_.back();
    }

    void add(Json message) {
        messages_.push_back(std::move(message));
        open_ = false;
    }

    void read_message(const Json& item, const std::string& where) {
        std::string role = text_at(item, "role", kInput, where);
        if (role == "developer") role = "system";
        if (role != "system" && role != "user" && role != "assistant")
            refuse(kInput, "{}: got role '{}', expected system, developer, user or assistant", where,
                   role.substr(0, 60));
        const std::string text =
            content_text(item.value("content", Json()), {"input_text", "output_text", "text"}, kInput, where);
        if (role != "assistant") return add({{"role", role}, {"content", text}});
        std::string& to = assistant()["content"].get_ref<std::string&>();
        to += (to.empty() ? "" : "\n") + text;
    }

    void read_reasoning(const Json& item, const std::string& where) {
        std::string text;
        for (const auto& [key, type] :
             {std::pair("summary", "summary_text"), {"content", "reasoning_text"}}) {
            const Json parts = item.value(key, Json());
            if (!parts.is_null() && !parts.empty()) text = content_text(parts, {type}, kInput, where);
        }
        if (text.empty()) return;
        Json& message = assistant();
        const std::string before = message.value("reasoning_content", "");
        message["reasoning_content"] = before + (before.empty() ? "" : "\n") + text;
    }

    Json& messages_;
    bool open_ = false;
};

}  // namespace

void read_input(const Json& input, Json& messages) {
    if (input.is_string()) {
        messages.push_back({{"role", "user"}, {"content", input}});
        return;
    }
    if (!input.is_array() || input.empty())
        refuse(kInput, "got {}, expected a text or an array of at least one item", shown(input));
    Messages reader(messages);
    size_t index = 0;
    for (const Json& item : input) reader.read(item, fmt::format("item {}", index++));
}

}  // namespace refold
