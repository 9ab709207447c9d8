// "format" of JSON Schema, where XGrammar's own patterns let wrong strings through.
#pragma once

#include <string>
#include <string_view>

namespace refold {

// A pattern of which all strings have the format: leading zeros in addresses, the 30th of February, names
// that are too long and characters that JSON escapes do not match it. Where the exact language would make a
// large automaton, it is narrower: names of hosts and mail addresses have up to five short labels without
// "--", and no second has 60 for a number. Empty for formats that XGrammar knows as well, and for those that
// are annotations only.
std::string format_pattern(std::string_view format);

}  // namespace refold
