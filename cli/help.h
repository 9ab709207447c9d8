// The look of --help.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <memory>

namespace refold::cli {

// Defaults behind the description instead of in front of it; types without CLI11's notes about ranges.
std::shared_ptr<CLI::FormatterBase> help_formatter();

// Ends the help text with command lines to try.
void add_examples(CLI::App& app, std::initializer_list<const char*> lines);

}  // namespace refold::cli
