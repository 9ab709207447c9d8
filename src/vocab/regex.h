// Regular expressions as pre-tokenizers and normalizers of Hugging Face's tokenizers use them (Oniguruma's
// syntax), on code points: alternatives, groups, (?i:...), classes with ranges and Unicode properties,
// lookahead, greedy, lazy and possessive repetition. Only a single character or class can be repeated more
// than once, so the stack that a match takes is bounded by the pattern alone. Its time is bounded by the
// length of the text: where matching takes long, what has failed is not tried again.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refold {

class Regex {
public:
    // `pattern` in UTF-8. Throws Error(unsupported) quoting what is not known.
    explicit Regex(const std::string& pattern);

    // All matches in one text, which must outlive this.
    class Search;

private:
    struct Program;
    std::shared_ptr<const Program> program_;
};

class Regex::Search {
public:
    Search(const Regex& regex, std::u32string_view text);

    // Begin and end of the leftmost match that is not empty, at `from` or later. Throws Error(unsupported)
    // when the search takes more steps than any real pattern does.
    std::optional<std::pair<size_t, size_t>> find(size_t from);

private:
    bool match(size_t index, size_t at, size_t& end);
    bool match_node(size_t index, size_t at, size_t& end);
    bool match_repeat(size_t index, size_t at, size_t& end);
    bool has_failed(size_t index, size_t at) const;
    void spend(size_t steps);

    std::shared_ptr<const Program> program_;
    std::u32string_view text_;
    size_t steps_ = 0;
    std::vector<bool> failed_;  // by node and position, once matching takes long
};

}  // namespace refold
