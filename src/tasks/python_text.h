// Text as in Python: code points, and white space by str.isspace().
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace refold {

// Code points of UTF-8 text.
size_t code_points(std::string_view text);

// str.rstrip(), str.strip(), str.split(), of valid UTF-8.
std::string_view rstrip(std::string_view text);
std::string_view strip(std::string_view text);
std::vector<std::string_view> split_words(std::string_view text);

// bytes.decode(errors="replace"): U+FFFD for bytes that are not UTF-8.
std::string valid_utf8(const std::string& bytes);

// Lower case of ASCII letters; other characters are unchanged.
std::string lower(std::string_view text);

}  // namespace refold
