#include "serve/conversation/function_fields.h"

#include "serve/conversation/content_text.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using Mode = ToolChoice::Mode;

constexpr const char* kTools = "tools";
constexpr const char* kChoice = "tool_choice";

// Checks {"type": "function", ...} and returns where its properties are.
const Json& function_of(const Json& given, FunctionStyle style, const char* field) {
    if (!given.is_object()) refuse(field, "got {}, expected an object", shown(given));
    const std::string type = text_at(given, "type", field, "a function");
    if (type != "function")
        refuse(field, "type '{}' is not supported - this server knows functions", type.substr(0, 60));
    if (style == FunctionStyle::flat) return given;
    const auto found = given.find("function");
    if (found == given.end() || !found->is_object()) refuse(field, "'function' is missing or no object");
    return *found;
}

Mode mode_of(const std::string& name) {
    if (name == "auto") return Mode::automatic;
    if (name == "none") return Mode::none;
    if (name != "required")
        refuse(kChoice, "got '{}', expected none, auto, required or a function", name.substr(0, 60));
    return Mode::required;
}

ToolChoice read_choice(const Json& given, FunctionStyle style) {
    if (given.is_null()) return {};
    if (given.is_string()) return {.mode = mode_of(given.get<std::string>())};
    if (!given.is_object())
        refuse(kChoice, "got {}, expected none, auto, required or a function", shown(given));
    if (given.value("type", Json()) != "allowed_tools")
        return {.mode = Mode::required,
                .allowed = {text_at(function_of(given, style, kChoice), "name", kChoice, "a function")},
                .several = false};
    const bool flat = style == FunctionStyle::flat || !given.contains("allowed_tools");
    const Json& holder = flat ? given : given["allowed_tools"];
    if (!holder.is_object()) refuse(kChoice, "'allowed_tools': got {}, expected an object", shown(holder));
    ToolChoice out{.mode = mode_of(text_at(holder, "mode", kChoice, "allowed_tools"))};
    const auto tools = holder.find("tools");
    if (tools == holder.end() || !tools->is_array() || tools->empty())
        refuse(kChoice, "'tools' of allowed_tools: expected an array of at least one tool");
    for (const Json& tool : *tools)
        out.allowed.push_back(text_at(function_of(tool, style, kChoice), "name", kChoice, "a function"));
    return out;
}

}  // namespace

Tool read_tool(const Json& given, const char* schema_key) {
    Tool out;
    out.name = text_at(given, "name", kTools, "a tool");
    for (const auto& [key, value] : given.items()) {
        if (key == "name" || key == "type" || value.is_null()) continue;
        if (key == "description" && value.is_string()) {
            out.description = value.get<std::string>();
        } else if (key == "strict" && value.is_boolean()) {
            out.strict = value.get<bool>();
        } else if (key == schema_key && value.is_object()) {
            out.parameters = value;
        } else {
            refuse(kTools, "'{}': '{}': got {}, which is not supported", out.name.substr(0, 60),
                   key.substr(0, 60), shown(value));
        }
    }
    return out;
}

OfferedTools read_functions(Fields& fields, FunctionStyle style) {
    OfferedTools out;
    if (const Json given = fields.ordered(kTools); !given.is_null()) {
        if (!given.is_array()) refuse(kTools, "got {}, expected an array", shown(given));
        for (const Json& tool : given)
            out.tools.push_back(read_tool(function_of(tool, style, kTools), "parameters"));
    }
    out.choice = read_choice(fields.ordered(kChoice), style);
    if (!fields.boolean("parallel_tool_calls", true)) out.choice.several = false;
    check_tools(out.tools, out.choice, kTools, kChoice);
    return out;
}

}  // namespace refold
