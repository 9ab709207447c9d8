// Results of tasks as lm-evaluation-harness's markdown table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace refold {

// From results_json(): all tasks with their groups, then the groups alone.
std::string results_table(const nlohmann::ordered_json& results);

}  // namespace refold
