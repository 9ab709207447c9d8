#include "text/jinja.h"

#include <gmock/gmock.h>

#include "core/error_of.h"
#include "core/json_number.h"

namespace refold {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::string repeated(const std::string& begin, const std::string& piece, const std::string& end) {
    std::string text = begin;
    for (int i = 0; i < 20000; ++i) text += piece;
    return text + end;
}

std::string chat(const std::string& source, const Json& variables = Json::object()) {
    return JinjaTemplate(source, {.keep_whitespace = false}).render(variables);
}
std::string task(const std::string& source, const Json& variables = Json::object()) {
    return JinjaTemplate(source).render(variables);
}
std::string refusal(const std::string& source, const Json& variables = {{"a", "a"}}) {
    return error_of([&] { chat(source, variables); });
}

TEST(Jinja, FunctionsOfTasks) {
    const Json with = {{"t", "a [b] c [d"}, {"l", {"x", "y"}}, {"u", "éLAN Ü"}, {"w", "\u3000 a \u00a0"}};
    EXPECT_EQ(task("{{ remove_between(t, '[', ']') }}|", with), "a  c [d|");
    EXPECT_EQ(task("{{ remove_between('[a\nb] [c]', '[', ']') }}", with), "[a\nb] ");
    EXPECT_EQ(task("{{ index(l, 'y') }}{{ index('äbc', 'b') }}", with), "11");
    EXPECT_EQ(task("{{ between(t, 'a ', ' c') }}", with), "[b]");
    EXPECT_EQ(task("{{ capitalize(u) }}", with), "Élan ü");
    EXPECT_EQ(task("{{ strip(w) }}", with), "a");
    EXPECT_EQ(task("a\n", with), "a\n");
    EXPECT_EQ(task("", with), "");
    EXPECT_EQ(task("{% if t %}\n{% endif %}", with), "\n");
    EXPECT_EQ(JinjaTemplate("{{ [t, l] }}").evaluate(with), (Json{"a [b] c [d", {"x", "y"}}));
    EXPECT_EQ(JinjaTemplate("{{ literal(\"[{'a': 'it\\\\'s', \\\"b\\\": [1, None, True]}]\") }}")
                  .evaluate(with)
                  .dump(),
              R"([{"a":"it's","b":[1,null,true]}])");
    EXPECT_EQ(JinjaTemplate("a{{ 1 }}").evaluate(with), Json("a1"));
    EXPECT_EQ(JinjaTemplate("{{ l | map('upper') }}").evaluate(with), (Json{"X", "Y"}));
    const auto fails = [&](const std::string& source) { return error_of([&] { task(source, with); }); };
    EXPECT_THAT(fails("{{ index(l, 'z') }}"), HasSubstr("is not in"));
    EXPECT_THAT(fails("{{ none_such }}"), HasSubstr("'none_such' is undefined"));
    EXPECT_THAT(fails("{{ l.z }}"), HasSubstr("no attribute 'z'"));
    EXPECT_THAT(fails("{{ literal('[1') }}"), HasSubstr("not a Python value"));
    EXPECT_EQ(chat("{{ strip is defined }}{{ none_such }}"), "False");
}

TEST(Jinja, NumbersOfAnySize) {
    const Json numbers = parse_exact(
        R"({"v": [48.856613, 1.0, 123456789.125, 18446744073709551615, 18446744073709551616, -9223372036854775809, 1e16, -0.0, 1E+2, 0.1e1]})");
    const std::string written =
        "[48.856613, 1.0, 123456789.125, 18446744073709551615, 18446744073709551616, -9223372036854775809, "
        "1e+16, "
        "-0.0, 100.0, 1.0]";
    EXPECT_EQ(chat("{{ v | tojson }}", numbers), written);
    EXPECT_EQ(chat("{{ v }}", numbers), written);
    EXPECT_EQ(JinjaTemplate("{{ v[3:6] }}").evaluate(numbers),
              Json::array({numbers["v"][3], numbers["v"][4], numbers["v"][5]}));
    EXPECT_EQ(exact_dump(JinjaTemplate("{{ v[4] }}").evaluate(numbers)), "18446744073709551616");
    EXPECT_THAT(refusal("{{ v[4] + 1 }}", numbers), HasSubstr("beyond 64 bits"));
    EXPECT_THAT(refusal("{{ 9223372036854775807 + 1 }}"), HasSubstr("beyond 64 bits"));
    EXPECT_THAT(refusal("{{ 2 ** 64 }}"), HasSubstr("beyond 64 bits"));
    EXPECT_THAT(refusal("{{ 10 ** 10 ** 10 }}"), HasSubstr("beyond 64 bits"));
}

TEST(JsonNumbers, ComeBackAsTheyWere) {
    const std::string text = R"({"b":[-123456789012345678901234567890,{"a":1.5}],"a":18446744073709551616})";
    EXPECT_EQ(exact_dump(parse_exact(text)), text);
    EXPECT_TRUE(parse_exact("{").is_discarded());
    EXPECT_TRUE(parse_exact("1e400").is_discarded());
    EXPECT_TRUE(parse_exact(std::string(100, '[') + std::string(100, ']')).is_discarded());
}

// A model's file brings its template along.
TEST(Jinja, NestingIsBounded) {
    for (const char* piece : {"not ", "- ", "a + ", "a if a else "})
        EXPECT_THAT(refusal(repeated("{{ ", piece, "a }}")), HasSubstr("nested too deeply")) << piece;
    for (const char* piece : {"|string", "[0]", ".x", "()"})
        EXPECT_THAT(refusal(repeated("{{ a", piece, " }}")), HasSubstr("nested too deeply")) << piece;
    for (const auto& [open, close] :
         {std::pair("(", ")"), std::pair("[", "]"), std::pair("{1: ", "}"), std::pair("a(", ")")})
        EXPECT_THAT(refusal(repeated(repeated("{{ ", open, "a"), close, " }}")),
                    HasSubstr("nested too deeply"))
            << open;
    for (const char* block :
         {"{% if a %}", "{% for i in a %}", "{% set x %}", "{% macro f() %}", "{% filter upper %}"})
        EXPECT_THAT(refusal(repeated("", block, "")), HasSubstr("blocks are nested too deeply")) << block;
    EXPECT_EQ(chat(repeated("{% if b %}", "{% elif b %}", "{% endif %}x")), "x");
    EXPECT_EQ(chat(repeated("", "{% if a %}{% endif %}", "x")), "x");
    EXPECT_THAT(
        refusal("{% set n = namespace(i=0) %}{% for x in range(300) %}{% set n.i = [n.i] %}{% endfor %}"),
        HasSubstr("nested too deeply"));
    // A namespace may hold itself, as in Jinja.
    const std::string itself = "{% set n = namespace(i=0) %}{% set n.i = [n] %}";
    EXPECT_EQ(chat(itself + "{{ n.i[0].i | length }}"), "1");
    EXPECT_THAT(refusal(itself + "{{ n }}"), HasSubstr("nested too deeply"));
    EXPECT_THAT(refusal(itself + "{{ n | tojson }}"), HasSubstr("not JSON serializable"));
}

TEST(Jinja, RecursionIsBounded) {
    for (const char* recursion :
         {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% macro f(x=f()) %}{% endmacro %}{{ f() }}",
          "{% macro f() %}{% if a %}{% call f() %}{% endcall %}{% endif %}{% endmacro %}{{ f() }}",
          "{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}",
          "{% for x in [a] recursive %}{{ loop([a]) }}{% endfor %}",
          "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}"})
        EXPECT_THAT(refusal(recursion),
                    testing::AnyOf(HasSubstr("call each other too deeply"), HasSubstr("No caller defined"),
                                   HasSubstr("keyword argument 'caller'")))
            << recursion;
}

// Each builds gigabytes, or takes hours, from a few characters.
TEST(Jinja, MemoryAndTimeAreBounded) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "the steps up to the bounds take minutes";
#endif
    const std::string doubled = "{% set n = namespace(s='ab') %}{% for i in range(40) %}{% set n.s = ";
    for (const std::string& source :
         {std::string("{{ 'a' * 10 ** 10 }}"),
          std::string("{{ [1] * 10 ** 10 }}"),
          std::string("{{ (1, 2) * 10 ** 9 }}"),
          doubled + "n.s ~ n.s %}{% endfor %}",
          doubled + "n.s + n.s %}{% endfor %}",
          doubled + "[n.s, n.s] %}{% endfor %}{{ n.s }}",
          doubled + "n.s | replace('a', 'aa') | replace('b', 'bb') %}{% endfor %}",
          doubled + "n.s.join(n.s) %}{% endfor %}",
          doubled + "n.s | list | join(n.s) %}{% endfor %}",
          doubled + "{'a': n.s, 'b': n.s} %}{% endfor %}{{ n.s | tojson }}",
          doubled + "(n.s | string) * 3 %}{% endfor %}",
          doubled + "n.s | replace('', n.s) %}{% endfor %}",
          std::string("{{ [[1]] | tojson(indent=10 ** 9) }}"),
          std::string("{{ 'a' | center(10 ** 10) }}"),
          std::string("{{ 'a'.ljust(10 ** 12) }}{{ 1 }}"),
          std::string("{{ 'a'.zfill(10 ** 9) }}"),
          std::string("{{ '%1000000000d' % 1 }}"),
          std::string("{{ '%.1000000000f' % 1.0 }}"),
          std::string("{{ '%*d' % (10 ** 9, 1) }}"),
          std::string("{{ '{:>1000000000}'.format(1) }}"),
          std::string("{{ '{:.1000000000f}'.format(1.0) }}"),
          std::string("{{ 'a' | indent(10 ** 10, true) }}"),
          std::string("{{ '\\t'.expandtabs(10 ** 10) }}"),
          std::string("{{ range(10 ** 10) }}"),
          std::string("{{ range(-9223372036854775807, 9223372036854775807) }}"),
          std::string("{{ [1] | batch(10 ** 10, 'x') | list }}"),
          std::string("{{ [1] | slice(10 ** 10) | list }}"),
          std::string("{% for i in range(99999) %}{{ 'abcdefghij' * 1000 }}{% endfor %}"),
          std::string(
              "{% set x = 'a' * 30000000 %}{% for i in range(9999) %}{% set y = x[1:] %}{% endfor %}"),
          std::string("{% set x = ('a' * 9000000) %}{% for i in range(9999) %}{{ (x ~ 'b') in (x ~ 'a' ~ x) "
                      "}}{% endfor %}"),
          std::string("{% set x = 'ä' * 9000000 %}{% for i in range(99999) %}{{ x[8999999] }}{% endfor %}"),
          std::string("{% set x = range(99999) | list %}{% for i in x %}{{ x | sum }}{% endfor %}"),
          std::string("{% set x = range(99999) | list %}{% for i in x %}{{ -1 in x }}{% endfor %}"),
          std::string("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")})
        EXPECT_THAT(refusal(source),
                    testing::AnyOf(HasSubstr("more than"), HasSubstr("too many"), HasSubstr("too large")))
            << source;
    EXPECT_EQ(chat("{{ range(9223372036854775800, 9223372036854775807, 5) | length }}"), "2");
    EXPECT_EQ(
        chat("{% for i in range(3) %}{{ i }}{% endfor %} {% for i in range(7, 1, -2) %}{{ i }}{% endfor %}"),
        "012 753");
    EXPECT_EQ(chat("{{ ('a' * 30000000) | length }}"), "30000000");  // within the bounds
}

TEST(Jinja, ErrorsNameTheLineAndTheProblem) {
    EXPECT_THAT(refusal("a\n{% if x %}"), HasSubstr("line 2: the template ends, expected 'endif'"));
    EXPECT_THAT(refusal("{% include 'x' %}"), HasSubstr("cannot read others"));
    EXPECT_THAT(refusal("{{ a | nosuch }}"), HasSubstr("no filter named 'nosuch'"));
    EXPECT_THAT(refusal("{{ raise_exception('no system\nmessages') }}"), HasSubstr("no system messages"));
    EXPECT_THAT(refusal("\xff"), HasSubstr("not UTF-8"));
    EXPECT_THAT(refusal("{{ ('<b>' | e) * 2 }}"), HasSubstr("escaped text"));
}

}  // namespace
}  // namespace refold
