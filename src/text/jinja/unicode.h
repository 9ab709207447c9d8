// Text as Python sees it: code points, their classes and their case.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace refold::jinja {

size_t code_points(std::string_view text);
// The code point at byte `at` of valid UTF-8, and moves `at` behind it.
char32_t next_point(std::string_view text, size_t& at);
void append_point(std::string& text, char32_t point);
std::u32string points_of(std::string_view text);
std::string utf8_of(std::u32string_view points);
// The byte at which code point `index` begins; the text's size beyond its end.
size_t byte_of(std::string_view text, size_t index);

// As the methods of str of these names.
bool is_space(char32_t point);
bool is_alpha(char32_t point);
bool is_decimal(char32_t point);
bool is_digit(char32_t point);
bool is_alnum(char32_t point);
bool is_printable(char32_t point);
bool is_upper(char32_t point);
bool is_lower(char32_t point);
bool is_title(char32_t point);
inline bool is_cased(char32_t point) { return is_upper(point) || is_lower(point) || is_title(point); }
bool begins_identifier(char32_t point);
bool continues_identifier(char32_t point);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);
std::string swapcase(std::string_view text);

// str.strip() and its sides; `marks`: the characters to strip, white space when null.
struct Strip {
    bool left = true, right = true;
};
std::string_view strip(std::string_view text, const std::u32string* marks, const Strip& sides);
// str.splitlines()
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

// Python's repr() of a text.
std::string quoted_text(std::string_view text);

}  // namespace refold::jinja
