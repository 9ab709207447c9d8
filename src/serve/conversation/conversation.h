// A conversation as all interfaces understand it.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "serve/conversation/tools.h"

namespace refold {

struct Conversation {
    // As chat templates take them: {"role", "content": text, ...}, an assistant's with "reasoning_content"
    // and "tool_calls": [{"id", "type": "function", "function": {"name", "arguments": {...}}}], a tool's with
    // "tool_call_id" and "name". At least one.
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    std::vector<Tool> tools;
    ToolChoice choice;
    // Of the template, beside those that it always gets.
    nlohmann::ordered_json variables = nlohmann::ordered_json::object();
};

// Adds a call of a tool to an assistant's message. `arguments`: JSON. Throws ApiError (400) that names
// `field` and `where` in it, for arguments that are no JSON object.
void add_call(nlohmann::ordered_json& message, const std::string& id, const std::string& name,
              const std::string& arguments, const char* field, const std::string& where);

// Finishes messages: results of tools get the names of the tools, which some templates write. Throws ApiError
// (400) that names `field` when the last message has calls whose results are missing.
void complete_messages(nlohmann::ordered_json& messages, const char* field);

}  // namespace refold
