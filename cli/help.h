// Format of --help.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <memory>

namespace refold::cli {

// Puts defaults after the description, not before it; types without CLI11's notes about ranges.
std::shared_ptr<CLI::FormatterBase> help_formatter();

// Ends the help text with example command lines.
void add_examples(CLI::App& app, std::initializer_list<const char*> lines);

}  // namespace refold::cli
