// Regular expressions as pre-tokenizers and normalizers of Hugging Face's tokenizers use them (Oniguruma's
// syntax), on code points: alternatives, groups, (?i:...), classes with ranges and Unicode properties,
// lookahead, greedy, lazy and possessive repetition. Only a single character or class can be repeated more
// than once, so that the time for a match is bounded by a power of the text's length that the pattern gives,
// and its stack by the pattern alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace refold {

class Regex {
public:
    // `pattern` in UTF-8. Throws Error(unsupported) quoting what is not known.
    explicit Regex(const std::string& pattern);

    // Begin and end of the leftmost match that is not empty, at `from` or later.
    std::optional<std::pair<size_t, size_t>> find(std::u32string_view text, size_t from) const;

private:
    struct Program;
    std::shared_ptr<const Program> program_;
};

}  // namespace refold
