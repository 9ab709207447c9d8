// JSONL: one JSON object per line.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace refold {

// Calls use(line, number) for every line. Lines come without their newline and are numbered from 1.
void for_lines(std::string_view text, const std::function<void(std::string_view line, size_t number)>& use);

// Throws Error(input) of `component`, naming the file `name` and the line, when `line` is not one JSON
// object.
nlohmann::ordered_json parse_json_line(std::string_view line, const char* component, const std::string& name,
                                       size_t number);

}  // namespace refold
