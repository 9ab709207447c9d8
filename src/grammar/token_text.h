// Which bytes of tokens may stand in a text.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace refold {

// Bytes at the end of `text` that begin a character; none when no bytes after `text` can make it UTF-8.
std::optional<size_t> unfinished(std::string_view text);
// Whether a token can be part of UTF-8: it may begin with the rest of a character.
bool can_be_text(std::string_view piece);
// JSON writes other control characters with escapes. A tab would be white space between its parts only, but
// XGrammar lets it, as all of them, into strings of bounded length.
bool can_be_json(std::string_view piece);

}  // namespace refold
