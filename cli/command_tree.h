// The command line as data, for what is made from it: shell completions and manual pages.
#pragma once

#include <string>
#include <vector>

namespace refold::cli {

struct OptionDescription {
    std::vector<std::string> names;  // "-o", "--output"; of a positional its name alone: "MODEL"
    bool positional = false, required = false;
    std::string type;                  // "FILE"; empty for a flag
    std::vector<std::string> choices;  // values that it takes, where they are a list
    std::string description;           // with its default

    bool takes_value() const { return !positional && !type.empty(); }
};

struct CommandDescription {
    std::string name, description;
    std::vector<OptionDescription> options;  // but --help, which all have
    std::vector<CommandDescription> subcommands;
    std::vector<std::string> examples;
};

// All verbs, by name.
std::vector<CommandDescription> command_tree();

}  // namespace refold::cli
