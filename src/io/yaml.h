// YAML parsing for recipes, task files and the papers' tables.
#pragma once

#include <yaml-cpp/yaml.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace refold {

// Parses a text that holds one document; an empty text gives null. Throws Error(input), with a message that
// begins with `component` and `label` (the file), for invalid YAML, for more than one document, and above
// bounds on size, depth and the number of values.
YAML::Node parse_yaml(const std::string& text, const char* component, const std::string& label);

// Reads the nodes of one file. All functions throw Error(input), with a message that begins with `component`
// and names the file, the line and the key.
class YamlFile {
public:
    YamlFile(const char* component, std::string label) : component_(component), label_(std::move(label)) {}

    const std::string& label() const { return label_; }
    // "FILE line 3"
    std::string at(const YAML::Node& node) const;
    // A single value.
    std::string scalar(const YAML::Node& node, const std::string& key) const;
    // A list of single values.
    std::vector<std::string> scalars(const YAML::Node& node, const std::string& key) const;
    // `what` must be a mapping, and have every key once: yaml-cpp silently keeps both of two equal ones.
    void check_map(const YAML::Node& node, const std::string& what) const;
    // Calls the function of every key. Throws Error(usage) for a key without one, with the nearest.
    using Readers = std::map<std::string, std::function<void(const YAML::Node&)>>;
    void read_map(const YAML::Node& node, const std::string& what, const Readers& readers) const;

private:
    const char* component_;
    std::string label_;
};

}  // namespace refold
