#include "generation/text_stream.h"

#include <gtest/gtest.h>

namespace refold {
namespace {

TEST(TextStream, WholeCharactersOnly) {
    TextStream stream({});
    EXPECT_EQ(stream.push("a\xE2\x82"), "a");
    EXPECT_EQ(stream.push("\xAC"
                          "b\xFF"),
              "\xE2\x82\xAC"
              "b\xEF\xBF\xBD");
    EXPECT_EQ(stream.push("\xF0\x9F"), "");
    EXPECT_EQ(stream.finish(), "");  // what a character has begun with is left out
}

TEST(TextStream, HoldsWhatMayBecomeAStop) {
    TextStream stream({"", "abc", "bd"});
    EXPECT_EQ(stream.push("xa"), "x");
    EXPECT_EQ(stream.push("b"), "");
    EXPECT_EQ(stream.push("x"), "abx");
    EXPECT_EQ(stream.push("ab"), "");
    EXPECT_FALSE(stream.stopped());
    EXPECT_EQ(stream.push("dy"), "a");
    EXPECT_TRUE(stream.stopped());
    EXPECT_EQ(stream.push("more") + stream.finish(), "");
}

TEST(TextStream, TheFirstOfSeveralStops) {
    TextStream stream({"cd", "abcd"});
    EXPECT_EQ(stream.push("xabc"), "x");
    EXPECT_EQ(stream.push("d"), "");
    EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, AHeldEndIsTextAfterAll) {
    TextStream stream({"stop"});
    EXPECT_EQ(stream.push("a sto"), "a ");
    EXPECT_EQ(stream.finish(), "sto");
    EXPECT_FALSE(stream.stopped());
}

TEST(TextStream, StopsInsideManyBytes) {
    TextStream stream({"\xE2\x82\xAC"});
    EXPECT_EQ(stream.push("1\xE2"), "1");
    EXPECT_EQ(stream.push("\x82"), "");
    EXPECT_EQ(stream.push("\xAC"), "");
    EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, NamesTheStop) {
    TextStream stream({"xyz", "bc", "c"});
    EXPECT_EQ(stream.push("abcd"), "a");
    EXPECT_EQ(stream.stop(), "bc");
}

TEST(TextStream, BeforeStops) {
    EXPECT_EQ(before_stops("one. two, three", {",", "."}), "one");
    EXPECT_EQ(before_stops("one", {"", "."}), "one");
}

}  // namespace
}  // namespace refold
