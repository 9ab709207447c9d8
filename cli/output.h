// Results go to standard output, everything else to standard error. Of several processes (core/group.h) only
// the first one prints.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace refold::cli {

// Writes to standard output at once. Throws Error(io) when that fails (disk full, reader gone).
void print(std::string_view text);
// Indented, or on one line; bytes that are not UTF-8 become U+FFFD.
void print_json(const nlohmann::ordered_json& value, bool one_line = false);

// Writes to standard error; failures are ignored.
void note(const std::string& text);
// A line on standard error.
template <typename... Args>
void log(fmt::format_string<Args...> format, Args&&... args) {
    note(fmt::format(format, std::forward<Args>(args)...) + "\n");
}

}  // namespace refold::cli
