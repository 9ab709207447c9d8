// A verb of the command line, one file in verbs/: verbs/NAME.cpp defines
//     extern const Verb NAME_verb;
//     const Verb NAME_verb = {"NAME", VerbGroup::..., "One line", declare};
// and nothing else names it: the list of verbs is made from the files' names (cmake/RefoldRegistry.cmake).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>

namespace refold::cli {

// Runs the verb once the command line has been parsed. Results go to standard output; throws refold::Error.
using Action = std::function<void()>;

// Headings of `refold --help`, in this order; a group's verbs follow in alphabetical order.
enum class VerbGroup { models, running, compression, measurement, conversion, setup };

struct Verb {
    const char* name;
    VerbGroup group;
    const char* description;  // one line
    // Declares the verb's options and examples on `app`.
    Action (*declare)(CLI::App& app);
};

// All verbs, by name.
std::span<const Verb* const> verbs();

}  // namespace refold::cli
