#include "serve/conversation/template_fields.h"

#include <algorithm>
#include <array>

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void set_effort(Json& variables, const std::string& effort, const char* field) {
    constexpr std::array kLevels = {"none", "minimal", "low", "medium", "high", "xhigh"};
    if (std::ranges::find(kLevels, effort) == kLevels.end())
        refuse(field, "got '{}', expected none, minimal, low, medium, high or xhigh", effort.substr(0, 60));
    variables["reasoning_effort"] = effort;
    if (effort == "none") variables["enable_thinking"] = false;
}

Json template_variables(Fields& fields) {
    constexpr const char* kField = "chat_template_kwargs";
    constexpr std::array kOwn = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"};
    Json out = Json::object();
    const std::string effort = fields.text("reasoning_effort");
    if (fields.find("reasoning_effort") != nullptr) set_effort(out, effort, "reasoning_effort");
    const Json given = fields.ordered(kField);
    if (given.is_null()) return out;
    if (!given.is_object()) refuse(kField, "got {}, expected an object", shown(given));
    constexpr size_t kMost = 64;
    if (given.size() > kMost) refuse(kField, "got {} variables, expected at most {}", given.size(), kMost);
    for (const auto& [name, value] : given.items()) {
        if (std::ranges::find(kOwn, name) != kOwn.end()) refuse(kField, "'{}' is set by the server", name);
        out[name] = value;
    }
    return out;
}

}  // namespace refold
