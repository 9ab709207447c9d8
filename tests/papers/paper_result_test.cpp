#include "papers/paper_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/temp_folder.h"
#include "papers/known_numbers.h"

namespace refold {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(PaperResult, NumbersAreComparedInTheDigitsThatArePrinted) {
    EXPECT_TRUE(equal_as_printed("6.74", 6.738415616));
    EXPECT_FALSE(equal_as_printed("6.74", 6.7451));
    EXPECT_TRUE(equal_as_printed("62.5", 62.5));
    EXPECT_TRUE(equal_as_printed("100", 99.6));
    EXPECT_FALSE(equal_as_printed("100", 99.4));
    EXPECT_EQ(difference_text({"6.74", 6.738, ""}), "=");
    EXPECT_EQ(difference_text({"90.36", 90.452, ""}), "+0.09");
    EXPECT_EQ(difference_text({"54.4", 51, ""}), "-3.4");
    EXPECT_EQ(difference_text({"", 51, ""}), "");
    EXPECT_EQ(difference_text({"51", {}, ""}), "");
    EXPECT_EQ(number_as_printed("90.36", 90.452), "90.45");
    EXPECT_EQ(number_as_printed("", 90.4523), "90.45");
    EXPECT_EQ(number_as_printed("81.3", 81.25), "81.3");
}

PaperResult example() {
    PaperResult result;
    result.table.paper = "000";
    result.table.place = "Table 3";
    result.table.title = "sizes & <memory>";
    result.table.columns.resize(2);
    result.table.columns[0].name = "B";
    result.table.columns[1].name = "M";
    result.table.columns[1].why = "another program";
    result.table.rows.resize(2);
    result.table.rows[0].name = "dense";
    result.table.rows[1].name = "30% | shared";
    result.cells = {{{"6.74", 6.738, ""}, {"17826", {}, "another program"}},
                    {{"6.09", 6.2, ""}, {"15512", {}, "another program"}}};
    result.version = "1";
    result.commands = {"refold compress a -o b"};
    return result;
}

TEST(PaperResult, TextHasPublishedHereAndDifference) {
    const std::string text = to_table(example());
    for (const char* part : {"000 Table 3", "6.74", "here", "6.20", "+0.11", "=", "M: another program"})
        EXPECT_THAT(text, HasSubstr(part));
    // A reason is said once for its column.
    EXPECT_EQ(text.find("another program"), text.rfind("another program"));
}

TEST(PaperResult, PagesAreEscaped) {
    EXPECT_THAT(to_html(example()), HasSubstr("sizes &amp; &lt;memory&gt;"));
    EXPECT_THAT(to_html(example()), Not(HasSubstr("<memory>")));
    EXPECT_THAT(to_markdown(example()), HasSubstr("30% \\| shared"));
    EXPECT_THAT(to_markdown(example()), HasSubstr("refold compress a -o b"));
}

TEST(PaperResult, JsonHasEveryCell) {
    const auto json = to_json(example());
    EXPECT_EQ(json["rows"][0]["cells"][0]["published"], 6.74);
    EXPECT_EQ(json["rows"][0]["cells"][0]["equal_as_printed"], true);
    EXPECT_NEAR(json["rows"][1]["cells"][0]["difference"].get<double>(), 0.11, 1e-9);
    EXPECT_EQ(json["rows"][1]["cells"][1]["here"], nullptr);
    EXPECT_EQ(json["rows"][1]["cells"][1]["note"], "another program");
}

TEST(KnownNumbers, AreKeptInTheirFile) {
    const TempFolder folder;
    const std::string path = folder / "a/b/numbers.jsonl";
    {
        KnownNumbers numbers(path);
        EXPECT_EQ(numbers.find("x"), nullptr);
        numbers.keep("x", 1.5);
        numbers.keep("y \"quoted\"\n", 2);
    }
    const KnownNumbers again(path);
    ASSERT_NE(again.find("x"), nullptr);
    EXPECT_EQ(*again.find("x"), 1.5);
    EXPECT_EQ(*again.find("y \"quoted\"\n"), 2);
    write_all(path, "{\"of\": 3}\n");
    EXPECT_THROW(KnownNumbers{path}, Error);
}

}  // namespace
}  // namespace refold
