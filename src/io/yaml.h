// YAML parsing for recipes and task files.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace refold {

// Parses a text that holds one document; an empty text gives null. Throws Error(input), with a message that
// begins with `component` and `label` (the file), for invalid YAML and for more than one document.
YAML::Node parse_yaml(const std::string& text, const char* component, const std::string& label);

}  // namespace refold
