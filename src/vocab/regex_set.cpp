#include "vocab/regex_set.h"

#include <algorithm>

#include "vocab/unicode.h"

namespace refold {

void RegexSet::finish(bool inverted, bool ignore_case) {
    inverted_ = inverted;
    ignore_case_ = ignore_case;
    for (char32_t c = 0; c < ascii_.size(); ++c) ascii_[c] = computed(c);
}

bool RegexSet::has(char32_t c) const {
    const auto in_range = [&](const Range& range) { return range.first <= c && c <= range.last; };
    if (std::any_of(ranges_.begin(), ranges_.end(), in_range)) return true;
    return std::any_of(items_.begin(), items_.end(), [&](const Item& item) {
        switch (item.kind) {
            case Item::Kind::space: return is_white_space(c) != item.inverted;
            case Item::Kind::word: return is_word_character(c) != item.inverted;
            case Item::Kind::categories: return ((category_bit(c) & item.categories) != 0) != item.inverted;
        }
        return false;
    });
}

bool RegexSet::computed(char32_t c) const {
    bool found = has(c);
    if (!found && ignore_case_) found = has(simple_lower(c)) || has(simple_upper(c)) || has(simple_fold(c));
    return found != inverted_;
}

}  // namespace refold
