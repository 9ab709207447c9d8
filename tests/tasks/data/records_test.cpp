#include "tasks/records.h"

#include <gmock/gmock.h>

#include "core/error_of.h"
#include "core/temp_folder.h"
#include "tasks/archive.h"
#include "text/jinja.h"

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

TEST(Jinja, FunctionsBesideJinjasOwn) {
    const nlohmann::ordered_json with = {
        {"t", "a [b] c [d"}, {"l", {"x", "y"}}, {"u", "éLAN Ü"}, {"w", "\u3000 a \u00a0"}};
    const auto render = [&](const std::string& text) { return JinjaTemplate(text).render(with); };
    EXPECT_EQ(render("{{ remove_between(t, '[', ']') }}|"), "a  c [d|");
    EXPECT_EQ(render("{{ remove_between('[a\nb] [c]', '[', ']') }}"), "[a\nb] ");
    EXPECT_EQ(render("{{ index(l, 'y') }}{{ index('abc', 'b') }}"), "11");
    EXPECT_EQ(render("{{ between(t, 'a ', ' c') }}"), "[b]");
    EXPECT_EQ(render("{{ capitalize(u) }}"), "Élan ü");
    EXPECT_EQ(render("{{ strip(w) }}"), "a");
    EXPECT_EQ(render("a\n"), "a\n");
    EXPECT_EQ(render(""), "");
    EXPECT_EQ(JinjaTemplate("{{ [t, l] }}").evaluate(with),
              (nlohmann::ordered_json{"a [b] c [d", {"x", "y"}}));
    EXPECT_EQ(JinjaTemplate("{{ literal(\"[{'a': 'it\\\\'s', \\\"b\\\": [1, None, True]}]\") }}")
                  .evaluate(with)
                  .dump(),
              R"([{"a":"it's","b":[1,null,true]}])");
    EXPECT_THAT(error_of([&] { render("{{ index(l, 'z') }}"); }), HasSubstr("is not in"));
    EXPECT_THAT(error_of([&] { render("{{ none_such }}"); }), HasSubstr("none_such"));
    EXPECT_THAT(error_of([&] { render("{{ l.z }}"); }), HasSubstr("Undefined"));
    EXPECT_THAT(error_of([&] { render("{{ literal('[1') }}"); }), HasSubstr("not a Python value"));
    EXPECT_THAT(error_of([&] {
                    JinjaTemplate(std::string(100, '('));
                    JinjaTemplate("{{ " + std::string(100, '('));
                }),
                HasSubstr("nested"));
    error_of([&] { JinjaTemplate("{% if t %}\n{% endif %}"); }, ErrorCode::unsupported);
}

// A model's file brings its template along.
TEST(Jinja, TemplatesCannotExhaustStackOrMemory) {
    const auto repeated = [](const std::string& begin, const std::string& piece, const std::string& end) {
        std::string text = begin;
        for (int i = 0; i < 20000; ++i) text += piece;
        return text + end;
    };
    const auto render = [](const std::string& text) { return JinjaTemplate(text).render({{"a", "a"}}); };
    for (const char* piece : {"not ", "- ", "a + ", "a if a else "})
        EXPECT_THAT(error_of([&] { render(repeated("{{ ", piece, "a }}")); }), HasSubstr("too long"))
            << piece;
    for (const char* piece : {"|string", "[0]"})
        EXPECT_THAT(error_of([&] { render(repeated("{{ a", piece, " }}")); }), HasSubstr("too long"))
            << piece;
    EXPECT_THAT(error_of([&] { render(repeated("", "{% if a %}", "")); }), HasSubstr("blocks"));
    EXPECT_THAT(error_of([&] { render(repeated("{% if a %}", "{% elif a %}", "{% endif %}")); }),
                HasSubstr("blocks"));
    EXPECT_THAT(error_of([&] { render("{{ range(10000000000) }}"); }), HasSubstr("100,000"));
    EXPECT_THAT(error_of([&] { render("{{ range(-9223372036854775807, 9223372036854775807) }}"); }),
                HasSubstr("100,000"));
    EXPECT_EQ(
        render(
            "{% for i in range(3) %}{{ i }}{% endfor %} {% for i in range(7, 1, -2) %}{{ i }}{% endfor %}"),
        "012 753");
    EXPECT_EQ(render("{{ range(9223372036854775800, 9223372036854775807, 5) | length }}"), "2");
    EXPECT_EQ(render(repeated("", "{% if a %}{% endif %}", "x")), "x");
    for (const char* recursion :
         {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% macro f(x=f()) %}{% endmacro %}{{ f() }}",
          "{% macro f() %}{% if a %}{% call f() %}{% endcall %}{% endif %}{% endmacro %}{{ f() }}",
          "{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}",
          "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}"})
        EXPECT_THAT(error_of([&] { render(recursion); }), HasSubstr("call each other too deeply"))
            << recursion;
    EXPECT_EQ(
        render("{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(9) }}"),
        "9876543210");
    EXPECT_EQ(
        render("{% macro f(n, m=2) %}{% for i in range(m) %}{{ n }}{% endfor %}{% endmacro %}{{ f(1) }}"),
        "11");
}

TEST(Jinja, TemplatesEnd) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "500,000 repetitions take a minute";
#endif
    EXPECT_THAT(
        error_of([&] {
            JinjaTemplate("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
                .render({{"a", "a"}});
        }),
        HasSubstr("500,000"));
}

// Such a value would exhaust the stack when it is written, and never be freed.
TEST(Jinja, NoValueContainsItself) {
    const auto refusal = [](const std::string& source) {
        return error_of([&] { JinjaTemplate(source).render({{"a", {"x"}}}); });
    };
    const std::string make = "{% set n = namespace(i=0, j=0) %}";
    EXPECT_THAT(refusal(make + "{% set n.i = n %}{{ n | tojson }}"), HasSubstr("hold a namespace"));
    EXPECT_THAT(refusal(make + "{% set n.i = [{'x': n}] %}"), HasSubstr("hold a namespace"));
    EXPECT_THAT(refusal(make + "{% set m = namespace(x=[n]) %}"), HasSubstr("hold a namespace"));
    EXPECT_THAT(refusal(make + "{% set d = {'x': 1} %}{% set d.y = d %}"),
                HasSubstr("members of a namespace"));
    EXPECT_THAT(refusal(make + "{% set n.i %}{{ n }}{% endset %}"), HasSubstr("a block cannot"));
    EXPECT_THAT(refusal("{% set b = a.append(a) %}{{ a }}"), HasSubstr("append"));
    EXPECT_THAT(refusal(make + "{% for x in range(300) %}{% set n.i = [n.i] %}{% endfor %}"),
                HasSubstr("nested too deeply"));
    EXPECT_THAT(refusal(make + "{% for x in range(30) %}{% set n.i = [n.i, n.i] %}{% endfor %}"),
                HasSubstr("too large"));
    EXPECT_EQ(JinjaTemplate(
                  make + "{% set n.i = a + [n.i] %}{{ n.i | tojson }}{% set n.j = n.i %}{{ n.j | length }}")
                  .render({{"a", {"x"}}}),
              "[\"x\", 0]2");
}

}  // namespace
}  // namespace refold
