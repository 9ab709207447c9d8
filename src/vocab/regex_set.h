// A set of characters in a regular expression: "x", ".", "\s", "[^\r\n\p{L}]".
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace refold {

class RegexSet {
public:
    void add_range(char32_t first, char32_t last) { ranges_.push_back({first, last}); }
    // \s, \w and \p (category_bits() of vocab/unicode.h); `inverted` for \S, \W and \P.
    void add_space(bool inverted) { add({Item::Kind::space, inverted, 0}); }
    void add_word(bool inverted) { add({Item::Kind::word, inverted, 0}); }
    void add_categories(uint32_t categories, bool inverted) {
        add({Item::Kind::categories, inverted, categories});
    }
    // To be called once, after the last add_*().
    void finish(bool inverted, bool ignore_case);

    bool contains(char32_t c) const { return c < ascii_.size() ? ascii_[c] : computed(c); }

private:
    struct Range {
        char32_t first, last;
    };
    struct Item {
        enum class Kind { space, word, categories } kind;
        bool inverted;
        uint32_t categories;
    };
    void add(Item item) { items_.push_back(item); }
    bool has(char32_t c) const;
    bool computed(char32_t c) const;

    std::vector<Range> ranges_;
    std::vector<Item> items_;
    bool inverted_ = false, ignore_case_ = false;
    std::array<bool, 128> ascii_{};
};

}  // namespace refold
