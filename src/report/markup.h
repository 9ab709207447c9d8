// Text into HTML, SVG and Markdown.
#pragma once

#include <string>
#include <string_view>

namespace refold {

// `text` as content or attribute value: markup characters as entities, everything that is not valid UTF-8 or
// not allowed in XML (control characters) as U+FFFD. Names of models and generated texts are not to be
// trusted.
std::string escape(std::string_view text);

// `text` as part of a line of Markdown, a table's cell included: nothing in it is markup or HTML.
std::string escape_markdown(std::string_view text);
// A hash as code in a line of Markdown; what is none as text, because it could end the code.
std::string markdown_hash(std::string_view hash);

// A block of code, which its content cannot end.
std::string markdown_code(std::string_view text, std::string_view language);

// At most `columns` characters, the rest cut off with an ellipsis. Expects UTF-8.
std::string shorten(std::string_view text, size_t columns);

}  // namespace refold
