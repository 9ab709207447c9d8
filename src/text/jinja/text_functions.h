// What filters and methods of texts have in common.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/unicode.h"
#include "text/jinja/value.h"

namespace refold::jinja {

// Before `wanted` is searched in `text`: throws TemplateError when that may take too long.
void check_search(std::string_view text, std::string_view wanted);
// text.strip(chars); `chars` is none for white space.
Value strip_text(const std::string& text, const Value& chars, const Strip& sides);
// text.replace(old, replacement, most); a negative `most` is no limit.
Value replace_text(const std::string& text, const std::string& old, const std::string& replacement,
                   int64_t most);
// text.split(mark, most) and text.split(None, most); `last`: rsplit().
std::vector<std::string_view> split_text(std::string_view text, std::string_view mark, int64_t most,
                                         bool last);
std::vector<std::string_view> split_spaces(std::string_view text, int64_t most, bool last);
// Text with the marks of HTML escaped; that of a value that is markup already stays.
std::string escaped(const std::string& text);
std::string escaped(const Value& text);
// text.isupper() or text.islower()
bool is_in_case(std::string_view text, bool upper_case);

}  // namespace refold::jinja
