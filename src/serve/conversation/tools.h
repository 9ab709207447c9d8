// Tools that a request offers the model, and whether it must call one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace refold {

struct Tool {
    std::string name, description = {};
    // JSON Schema of the arguments; null: there are none.
    nlohmann::ordered_json parameters = {};
    bool strict = false;  // refused if not all of the schema can be enforced

    // {"type": "function", "function": {...}}, as chat templates take it.
    nlohmann::ordered_json for_template() const;
};

struct ToolChoice {
    enum class Mode { automatic, none, required };
    Mode mode = Mode::automatic;
    std::vector<std::string> allowed = {};  // names; empty: all
    bool several = true;                    // calls in one answer
};

constexpr size_t kMostTools = 128;

// Throws ApiError (400) that names `field`: for a name that is no name, tools of one name, too many tools,
// and a choice of tools that are not there.
void check_tools(const std::vector<Tool>& tools, const ToolChoice& choice, const char* field,
                 const char* choice_field);

}  // namespace refold
