// Escapes text for HTML, SVG and Markdown.
#pragma once

#include <string>
#include <string_view>

namespace refold {

// `text` as content or attribute value: markup characters become entities; invalid UTF-8 and characters that
// XML forbids (control characters) become U+FFFD. Use it for all names of models and generated texts, which
// are untrusted.
std::string escape(std::string_view text);

// `text` as part of a line or table cell of Markdown, with all markup and HTML escaped.
std::string escape_markdown(std::string_view text);
// A hash as inline code. A text that is not a hash is escaped instead, because it could end the code.
std::string markdown_hash(std::string_view hash);

// A code block that its content cannot end.
std::string markdown_code(std::string_view text, std::string_view language);

// Truncates UTF-8 text to `columns` characters, the last one an ellipsis.
std::string shorten(std::string_view text, size_t columns);

}  // namespace refold
