// What names may look like; most of them come from a server and become paths and URLs.
#pragma once

#include <string>
#include <string_view>

namespace refold::hub {

// A relative path that stays in its folder: no "", "." or ".." between slashes, no control characters.
bool is_safe_path(std::string_view path);
// Lower-case hexadecimal of `digits` digits.
bool is_hex(std::string_view text, size_t digits);
inline bool is_commit(std::string_view text) { return is_hex(text, 40); }
// Usable as a file name and as it is: letters, digits, "-", "_", ".", and no "." in front.
bool is_plain_name(std::string_view text);

// Percent-encoded for a URL, except for letters, digits, "-._~" and what is in `keep`.
std::string percent_encode(std::string_view text, std::string_view keep = "");
// Short and printable: something a server said, to be quoted in a message.
std::string quotable(std::string_view text);

}  // namespace refold::hub
