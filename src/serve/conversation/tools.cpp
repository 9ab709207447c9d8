#include "serve/conversation/tools.h"

#include <algorithm>
#include <set>

#include "serve/fields.h"

namespace refold {

nlohmann::ordered_json Tool::for_template() const {
    nlohmann::ordered_json function = {{"name", name}};
    if (!description.empty()) function["description"] = description;
    if (!parameters.is_null()) function["parameters"] = parameters;
    return {{"type", "function"}, {"function", std::move(function)}};
}

void check_tools(const std::vector<Tool>& tools, const ToolChoice& choice, const char* field,
                 const char* choice_field) {
    constexpr size_t kLongestName = 128;
    if (tools.size() > kMostTools)
        refuse(field, "got {} tools, expected at most {}", tools.size(), kMostTools);
    std::set<std::string, std::less<>> names;
    for (const Tool& tool : tools) {
        const bool valid = !tool.name.empty() && tool.name.size() <= kLongestName &&
                           std::ranges::all_of(tool.name, [](char c) {
                               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                                      (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
                           });
        if (!valid)
            refuse(field, "got the name {}, expected up to {} letters, digits, '_', '-' and '.'",
                   shown(nlohmann::json(tool.name)), kLongestName);
        if (!names.insert(tool.name).second) refuse(field, "two tools have the name '{}'", tool.name);
    }
    for (const std::string& name : choice.allowed)
        if (!names.contains(name))
            refuse(choice_field, "there is no tool of the name {}", shown(nlohmann::json(name)));
    if (choice.mode == ToolChoice::Mode::required && tools.empty())
        refuse(choice_field, "a call is asked for, but there are no tools");
}

}  // namespace refold
