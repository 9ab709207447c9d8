#include "eval/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error_of.h"
#include "eval/excerpt.h"

namespace refold {
namespace {

using testing::HasSubstr;

TEST(Words, AreRunsOfWhiteSpacePlusOne) {
    EXPECT_EQ(count_words(""), 1);
    EXPECT_EQ(count_words("one"), 1);
    EXPECT_EQ(count_words("one  two\n\tthree"), 3);
    EXPECT_EQ(count_words(" one "), 3);  // empty pieces at both ends, as in re.split
    EXPECT_EQ(count_words("a\u00A0b\u3000c\u2009d\u0085e\x1C"
                          "f"),
              6);
    EXPECT_EQ(count_words("a\u200Bb\u2060c"), 1);  // no white space to Python
}

TEST(Detokenizer, RunningText) {
    EXPECT_EQ(wikitext_detokenized(" guest @-@ starring , 1 @,@ 000 @.@ 5 ; so : yes ! no ? end . x"),
              " guest-starring, 1,000.5; so: yes! no? end. x");
    EXPECT_EQ(wikitext_detokenized("( a b ) [  c ] { d } \" e \" ' f '"), "(a b) [c] {d} \"e\" 'f'");
    EXPECT_EQ(wikitext_detokenized("( no end"), "( no end");
    EXPECT_EQ(wikitext_detokenized("boys ' toys , Jim 's"), "boys'toys, Jim's");
    EXPECT_EQ(wikitext_detokenized("= = = = a = = = b = = c"), "==== a === b == c");
    EXPECT_EQ(wikitext_detokenized("5 \u00B0 C \n N N x"), "5\u00B0C\nN 1 x");
    EXPECT_EQ(wikitext_detokenized("/' 7/ /' x/"), "/'[0-9]/ /' x/");
}

TEST(Documents, PagesOfWikiText) {
    const auto split = split_documents(" \n = One = \n a \n = = Part = = \n b \n = Two = \n c \n", "x");
    EXPECT_EQ(split.form, DocumentForm::wikitext);
    ASSERT_EQ(split.documents.size(), 2u);
    EXPECT_EQ(split.documents[0].text, " = One =\na\n== Part ==\nb ");
    EXPECT_EQ(split.documents[0].bytes, 32);
    EXPECT_EQ(split.documents[1].text, " = Two =\nc\n");
    EXPECT_EQ(split.documents[1].words, count_words(" = Two = \n c \n"));
}

TEST(Documents, TextWithoutTitlesIsOne) {
    const auto split = split_documents("Just , a text .\n", "x");
    EXPECT_EQ(split.form, DocumentForm::plain);
    ASSERT_EQ(split.documents.size(), 1u);
    EXPECT_EQ(split.documents[0].text, "Just , a text .\n");
}

TEST(Documents, JsonLines) {
    const auto split = split_documents("{\"text\": \"a , b\", \"id\": 3}\n\n{\"page\": \"a , b\"}\n", "x");
    EXPECT_EQ(split.form, DocumentForm::jsonl);
    ASSERT_EQ(split.documents.size(), 2u);
    EXPECT_EQ(split.documents[0].text, "a , b");
    EXPECT_EQ(split.documents[1].text, "a, b");
    EXPECT_EQ(split.documents[1].words, 3);
    EXPECT_EQ(split.documents[1].bytes, 5);
    // sha256 of json.dumps({"page": "a , b"}, indent=2)
    EXPECT_EQ(split.documents[1].hash, "1248ce855913b524d965581820071e00aac21fd1d7589b0b9d18c3936b073428");
}

TEST(Documents, BadLinesAreNamed) {
    const std::string good = "{\"text\": \"a\"}\n";
    const auto error = [&](const std::string& line) {
        return error_of([&] { split_documents(good + line, "d.jsonl"); });
    };
    EXPECT_THAT(error("{\"text\": \"a\""), HasSubstr("'d.jsonl', line 2: no valid JSON at byte"));
    EXPECT_THAT(error("[1]"), HasSubstr("'d.jsonl', line 2: got array, expected a JSON object"));
    EXPECT_THAT(error("{\"text\": 3}"), HasSubstr("line 2: \"text\" is not a string"));
    EXPECT_THAT(error("{\"body\": \"x\"}"), HasSubstr("line 2: no \"text\" and no \"page\""));
    EXPECT_THAT(error("{\"text\": \"a\", \"x\": " + std::string(100000, '[')), HasSubstr("line 2: "));
    EXPECT_THAT(error("{\"text\": \"a\", \"x\": " + std::string(100, '[') + std::string(100, ']') + "}"),
                HasSubstr("line 2: nested too deep"));
}

TEST(Rows, AreJoinedByBlankLines) {
    // Rows of the dataset: "", " = T = \n", "", " text \n".
    EXPECT_EQ(wikitext_rows_joined(" \n = T = \n \n text \n"), "\n\n = T = \n\n\n\n\n text \n");
    EXPECT_EQ(wikitext_rows_joined("no newline"), "no newline");
}

}  // namespace
}  // namespace refold
