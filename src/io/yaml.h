// YAML as recipes and task files have it.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace refold {

// The one document of a text; null of an empty one. `component` and `label` (the file) begin the message of
// Error(input), thrown for text that is not YAML and for more than one document.
YAML::Node parse_yaml(const std::string& text, const char* component, const std::string& label);

}  // namespace refold
