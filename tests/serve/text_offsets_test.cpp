// Where tokens begin in the text of an answer.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/logprobs_json.h"

namespace refold {
namespace {

std::vector<int64_t> offsets(const std::vector<std::string>& pieces) {
    TextOffsets text;
    std::vector<int64_t> out;
    for (const std::string& piece : pieces) out.push_back(text.add(piece));
    return out;
}

using Offsets = std::vector<int64_t>;

TEST(TextOffsets, CountCharacters) {
    EXPECT_EQ(offsets({"ab", "c", "", "d"}), (Offsets{0, 2, 3, 3}));
    EXPECT_EQ(offsets({"\u00e9\u6f22", "x"}), (Offsets{0, 2}));
}

// All parts of a character begin where it does.
TEST(TextOffsets, PartsOfCharacters) {
    EXPECT_EQ(offsets({"a", "\xf0\x9f", "\x99\x82", "b"}), (Offsets{0, 1, 1, 2}));
    EXPECT_EQ(offsets({"a\xe6", "\xbc",
                       "\xa2"
                       "b",
                       "c"}),
              (Offsets{0, 1, 1, 3}));
}

// Each byte that is none is U+FFFD in the text.
TEST(TextOffsets, AfterInvalidBytes) {
    EXPECT_EQ(offsets({"\x80", "a"}), (Offsets{0, 1}));
    EXPECT_EQ(offsets({"\xff\xfe", "a", "b"}), (Offsets{0, 2, 3}));
    EXPECT_EQ(offsets({"a\xe2", "b", "c"}), (Offsets{0, 2, 3}));
    EXPECT_EQ(offsets({"\xe2\x80", "\xe2\x80\xa6", "c"}), (Offsets{0, 2, 3}));
    EXPECT_EQ(offsets({"\xe0", "\x80", "a"}), (Offsets{0, 1, 2}));      // a form that is too long
    EXPECT_EQ(offsets({"\xed\xa0", "\x80", "a"}), (Offsets{0, 2, 3}));  // half of a surrogate pair
    EXPECT_EQ(offsets({"\xf4\x90", "a"}), (Offsets{0, 2}));             // beyond U+10FFFF
}

}  // namespace
}  // namespace refold
