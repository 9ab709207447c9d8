// Words of task files and of their data.
#pragma once

#include <string_view>

namespace refold {

inline constexpr std::string_view kTaskWords[] = {
    "{",       "}",        "[",  "]",  "\"", "\n", ",",     "\t",        "\\",
    "\xff",    "{{",       "}}", "{%", "0",  "-1", "1e999", "null",      "''",
    "|",       ".",        ":",  "&a", "*a", "(",  "!!",    "<subject>", "99999999999999999999",
    " index(", "literal(", "\r"};

}  // namespace refold
