#include "tasks/records.h"

#include <gmock/gmock.h>

#include "core/error_of.h"
#include "core/temp_folder.h"
#include "tasks/archive.h"

namespace refold {
namespace {

using testing::HasSubstr;

std::vector<Record> parse(const std::string& text, const RecordOptions& options) {
    return parse_records(text, options, "data");
}

TEST(Records, TablesHaveQuotedCells) {
    RecordOptions options;
    options.form = RecordForm::csv;
    const auto records =
        parse("\xEF\xBB\xBFq,a\r\n\"one, \"\"two\"\"\nthree\",4\r\nfive \"six\",\n", options);
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[0].fields.dump(), R"({"q":"one, \"two\"\nthree","a":"4"})");
    EXPECT_EQ(records[0].line, 2u);
    EXPECT_EQ(records[1].fields.dump(), R"({"q":"five \"six\"","a":""})");
    EXPECT_EQ(records[1].line, 4u);
    EXPECT_THAT(error_of([&] { parse("q,a\n1\n", options); }),
                HasSubstr("data line 2: 1 columns, expected 2 (q, a)"));
    EXPECT_THAT(error_of([&] { parse("q,a\n1,\"2\n\n", options); }),
                HasSubstr("data line 2: a quoted cell does not end"));
    options.columns = {"x"};
    EXPECT_EQ(parse("1\n2\n", options).size(), 2u);
    options.form = RecordForm::tsv;
    options.columns = {"x", "y"};
    EXPECT_EQ(parse("\"1\t2\"\n", options)[0].fields["x"], "\"1");
}

TEST(Records, DocumentsOfObjects) {
    RecordOptions options;
    options.form = RecordForm::json;
    options.items = "a.b";
    options.key = "id";
    const auto records = parse(R"({"a": {"b": {"x": {"q": 1}, "y": "plain"}}})", options);
    EXPECT_EQ(records[0].fields.dump(), R"({"q":1,"id":"x"})");
    EXPECT_EQ(records[1].fields.dump(), R"({"value":"plain","id":"y"})");
    EXPECT_THAT(error_of([&] { parse("{\"a\": []}", options); }), HasSubstr("no member 'a.b'"));
    options.items = "";
    EXPECT_THAT(error_of([&] { parse("[1]", options); }),
                HasSubstr("item 1: expected an object, got number"));
    EXPECT_THAT(error_of([&] { parse("3", options); }), HasSubstr("expected a list of items"));
}

TEST(Records, ListsUnfold) {
    RecordOptions options;
    options.unfold = {"q", "a"};
    const auto records = parse(R"({"q": [1, 2], "a": ["x", "y"], "t": "same"})", options);
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[1].fields.dump(), R"({"q":2,"a":"y","t":"same"})");
    EXPECT_THAT(error_of([&] { parse(R"({"q": [1], "a": []})", options); }),
                HasSubstr("'a' has 0 entries and 'q' 1"));
    EXPECT_THAT(error_of([&] { parse(R"({"q": [1]})", options); }), HasSubstr("'a' is no list"));
}

TEST(Records, HellaSwagsTextForm) {
    RecordOptions options;
    options.form = RecordForm::hellaswag_text;
    const auto records = parse("Act: One. two: three\n2\na\nb\nc\nd\nAct: Whole.\n0\na\nb\nc\nd\n", options);
    EXPECT_EQ(records[0].fields["ctx_a"], "One.");
    EXPECT_EQ(records[0].fields["ctx_b"], "two: three");
    EXPECT_EQ(records[0].fields["label"], "2");
    EXPECT_EQ(records[1].fields["ctx_a"], "Whole.");
    EXPECT_EQ(records[1].fields["ctx_b"], "");
    EXPECT_EQ(records[1].line, 7u);
    EXPECT_THAT(error_of([&] { parse("Act: x\n7\n", options); }), HasSubstr("data line 2: expected a label"));
    EXPECT_THAT(error_of([&] { parse("Act: x\n1\na\n", options); }), HasSubstr("fewer than four endings"));
    EXPECT_THAT(error_of([&] { parse("Act\n1\na\n", options); }),
                HasSubstr("line 1: expected 'activity: context'"));
}

TEST(Archives, DamagedAndMissing) {
    const std::string folder = std::string(REFOLD_FIXTURES) + "/tasks/";
    EXPECT_THAT(read_data_file(folder + "hellaswag/hellaswag_val_full.txt.bz2"),
                testing::StartsWith("Roof shingle"));
    EXPECT_THAT(read_data_file(folder + "mmlu/mmlu.zip!data/dev/anatomy_dev.csv"),
                HasSubstr("pharyngeal arch"));
    EXPECT_FALSE(has_data_file(folder + "mmlu/mmlu.zip!data/dev/none.csv"));
    EXPECT_THAT(error_of([&] { read_data_file(folder + "mmlu/mmlu.zip!none"); }),
                HasSubstr("has no member 'none'"));
    error_of([&] { read_data_file(folder + "none"); }, ErrorCode::io);
    const TempFolder temp;
    const std::string whole = read_all(folder + "hellaswag/hellaswag_val_full.txt.bz2");
    write_all(temp / "cut.bz2", whole.substr(0, whole.size() / 2));
    EXPECT_THAT(error_of([&] { read_data_file(temp / "cut.bz2"); }), HasSubstr("cannot be unpacked"));
    write_all(temp / "no.zip", "text");
    EXPECT_THAT(error_of([&] { read_data_file(temp / "no.zip!a"); }), HasSubstr("cannot be unpacked"));
}

}  // namespace
}  // namespace refold
