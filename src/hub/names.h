// Checks of names. Most names come from a server and become paths and URLs.
#pragma once

#include <string>
#include <string_view>

namespace refold::hub {

// A relative path that stays in its folder: no empty, "." or ".." components, no control characters.
bool is_safe_path(std::string_view path);
// Exactly `digits` lower-case hexadecimal digits.
bool is_hex(std::string_view text, size_t digits);
inline bool is_commit(std::string_view text) { return is_hex(text, 40); }
// Safe as a file name: letters, digits, "-", "_" and ".", not beginning with ".".
bool is_plain_name(std::string_view text);

// Percent-encodes all but letters, digits, "-._~" and the characters of `keep`.
std::string percent_encode(std::string_view text, std::string_view keep = "");
// A server's text, shortened and made printable for a message.
std::string quotable(std::string_view text);

}  // namespace refold::hub
