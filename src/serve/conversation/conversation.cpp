#include "serve/conversation/conversation.h"

#include <map>

#include "core/json_number.h"
#include "serve/fields.h"

namespace refold {

void add_call(nlohmann::ordered_json& message, const std::string& id, const std::string& name,
              const std::string& arguments, const char* field, const std::string& where) {
    nlohmann::ordered_json parsed = nlohmann::ordered_json::object();
    if (!arguments.empty()) {
        try {
            count_body(arguments);
        } catch (const ApiError&) {
            refuse(field, "{}: the arguments of a call are no JSON", where);
        }
        parsed = parse_exact(arguments);
    }
    if (!parsed.is_object())
        refuse(field, "{}: the arguments of a call are {}, expected an object", where, shown(parsed));
    message["tool_calls"].push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", std::move(parsed)}}}});
}

void complete_messages(nlohmann::ordered_json& messages, const char* field) {
    std::map<std::string, std::string> names;
    for (nlohmann::ordered_json& message : messages) {
        if (message.contains("tool_calls")) {
            for (const nlohmann::ordered_json& call : message["tool_calls"])
                names[call["id"]] = call["function"]["name"];
        }
        if (message["role"] != "tool" || message.contains("name")) continue;
        const auto found = names.find(message.value("tool_call_id", ""));
        if (found != names.end()) message["name"] = found->second;
    }
    if (messages.back().contains("tool_calls"))
        refuse(field, "the last message calls tools - their results must follow it");
}

}  // namespace refold
