#include "report/report.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report/markup.h"
#include "report/markup_check.h"
#include "report/shared_model.h"

namespace refold {
namespace {

Comparison comparison() {
    Comparison c;
    c.title = "Sharing & measuring";
    c.model = "tiny <b>model</b>";
    c.source = "tiny.gguf";
    c.hashes = {{c.source, std::string(64, 'a')}};
    c.version = "0.1.0";
    c.date = "2025-01-02";
    c.machine = {"A processor", 2, uint64_t{24} << 30};
    c.commands = {"refold compress tiny.gguf -o out.gguf --method direct_share --set ratio=0.1"};
    c.notes = {"A note about what was measured."};
    Variant dense;
    dense.name = "dense";
    dense.file = c.source;
    dense.hashes = c.hashes;
    dense.parameters = 134515008;
    dense.file_bytes = 98362432;
    dense.kv_bytes_per_token = 23040;
    dense.resident_weight_bytes = 97000000;
    dense.resident_set_bytes = 150000000;
    dense.perplexities = {{17.65, 0.41, 4092, "excerpt, 4 windows of 1024"}};
    dense.tasks = {{"hellaswag", "acc_norm", 0.431, 0.005, "0 shots, 1000 items"},
                   {"piqa", "acc", 0.684, 0.011, "0 shots, 1000 items"}};
    dense.prefill = SpeedFigure{500.5, 450.25, 1.11};
    dense.decode = SpeedFigure{200.5, 180.25, 1.12};
    dense.prompt = "Why is the sky blue?";
    dense.generated = "<script>alert('https://example.org')</script> & \"more\"";
    Variant shared = dense;
    shared.name = "30 % shared";
    shared.recipe = "steps:\n  - method: direct_share\n    ratio: 0.3\n";
    shared.file = "shared.gguf";
    shared.hashes = {{"shared.gguf", std::string(64, 'b')}};
    shared.reconstruction = Reconstruction{{Slot::attn_q}, {{0.0}, {0.25}, {1.5}}, 0.75, 3, 2, 0};
    shared.parameters = 107612006;
    shared.perplexities[0].value = 566;
    shared.tasks[0].value = 0.3;
    shared.generated = "ends within a character: \xE2\x82";
    shared.topology = topology_map(shared_model());
    Variant unmeasured;
    unmeasured.name = "only planned";
    unmeasured.parameters = 121000000;
    c.variants = {dense, shared, unmeasured};
    return c;
}

std::string without(std::string text, const std::string& part) {
    for (size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
    return text;
}

TEST(ReportJson, HoldsTheNumbers) {
    const auto json = nlohmann::json::parse(to_json(comparison()));
    ASSERT_EQ(json["variants"].size(), 3U);
    const auto& dense = json["variants"][0];
    EXPECT_EQ(dense["parameters"], 134515008);
    EXPECT_EQ(dense["file_bytes"], 98362432);
    EXPECT_EQ(dense["resident_weight_bytes"], 97000000);
    EXPECT_EQ(dense["resident_set_bytes"], 150000000);
    EXPECT_EQ(dense["perplexity"]["perplexity"], 17.65);
    EXPECT_EQ(dense["perplexity"]["standard_error"], 0.41);
    EXPECT_EQ(dense["decode"]["tokens_per_s"], 200.5);
    EXPECT_EQ(dense["decode"]["baseline_tokens_per_s"], 180.25);
    EXPECT_EQ(dense["prefill"]["ratio"], 1.11);
    EXPECT_EQ(dense["sample"]["generated"], comparison().variants[0].generated);
    EXPECT_EQ(json["variants"][1]["topology"]["borrowed"].size(), 3U);
    EXPECT_EQ(json["variants"][1]["topology"]["borrowed"][1]["from_head"], 1);
    EXPECT_TRUE(json["variants"][2]["perplexity"].is_null());
    EXPECT_TRUE(json["variants"][2]["resident_set_bytes"].is_null());
    EXPECT_EQ(json["machine"]["threads"], 2);
    EXPECT_EQ(dense["sha256"], std::string(64, 'a'));
    EXPECT_EQ(dense["tasks"][0]["value"], 0.431);
    EXPECT_EQ(json["variants"][1]["reconstruction"]["total"], 0.75);
    EXPECT_EQ(json["variants"][1]["reconstruction"]["relative_errors"][1][0], 0.25);
}

TEST(ReportJson, NumbersThatAreNotFiniteAreNull) {
    Comparison c = comparison();
    c.variants[1].perplexities[0].value = std::numeric_limits<double>::infinity();
    c.variants[1].decode->ratio = std::numeric_limits<double>::quiet_NaN();
    const auto json = nlohmann::json::parse(to_json(c));
    EXPECT_TRUE(json["variants"][1]["perplexity"]["perplexity"].is_null());
    EXPECT_TRUE(json["variants"][1]["decode"]["ratio"].is_null());
    EXPECT_EQ(markup_error(to_html(c)), "");
}

TEST(ReportTable, IsAligned) {
    std::istringstream lines(to_table(comparison()));
    std::string header, rule, line;
    std::getline(lines, header);
    std::getline(lines, rule);
    EXPECT_EQ(header.size(), rule.size());
    EXPECT_NE(header.find("30 % shared"), std::string::npos);
    size_t rows = 0;
    for (; std::getline(lines, line) && !line.empty(); ++rows) EXPECT_EQ(line.size(), rule.size()) << line;
    EXPECT_GE(rows, 9U);
    EXPECT_EQ(line, "");
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(line, "A note about what was measured.");
}

TEST(ReportTable, ShowsChangesAgainstTheFirstVariant) {
    const std::string table = to_table(comparison());
    EXPECT_NE(table.find("134.52 M"), std::string::npos);
    EXPECT_NE(table.find("107.61 M (-20.0 %)"), std::string::npos);
    EXPECT_NE(table.find("566.00 (x 32.1)"), std::string::npos);
    EXPECT_NE(table.find("1.12 x"), std::string::npos);
}

TEST(ReportTable, EndsWithTheGeneratedTexts) {
    Comparison c = comparison();
    c.variants[1].prompt = "Why\tis";
    c.variants[1].generated = "Because\n\x1b[31m";
    EXPECT_TRUE(to_table(c).ends_with("\n30 % shared: \"Why is\" ->\n    Because  [31m\n"));
}

TEST(ReportHtml, IsWellFormedAndComplete) {
    const std::string html = to_html(comparison());
    EXPECT_EQ(markup_error(html), "");
    for (const auto& variant : comparison().variants)
        EXPECT_NE(html.find(variant.name), std::string::npos) << variant.name;
    for (const char* part : {"<table>", "<figcaption>", "scope=\"row\"", "prefers-color-scheme:dark",
                             "name=\"viewport\"", "Perplexity", "tokens per second", "stock llama.cpp",
                             "± 1 standard error", "ratio=0.1", "A processor", "SHA-256"}) {
        EXPECT_NE(html.find(part), std::string::npos) << part;
    }
    EXPECT_NE(html.find(std::string(64, 'a')), std::string::npos);
    EXPECT_NE(html.find(std::string(64, 'b')), std::string::npos);
}

TEST(ReportHtml, TrustsNoText) {
    const std::string html = to_html(comparison());
    EXPECT_EQ(html.find("<script"), std::string::npos);
    EXPECT_NE(html.find("&lt;script&gt;alert(&#39;"), std::string::npos);
    EXPECT_EQ(html.find("<b>model"), std::string::npos);
    EXPECT_NE(html.find("ends within a character: \xEF\xBF\xBD"), std::string::npos);
}

TEST(ReportHtml, NeedsNothingElse) {
    Comparison c = comparison();
    c.variants[0].generated = "no address here";
    const std::string html = without(to_html(c), "xmlns=\"http://www.w3.org/2000/svg\"");
    for (const char* reference :
         {"http://", "https://", "src=", "href=", "url(", "@import", "<script", "<link", "<img"}) {
        EXPECT_EQ(html.find(reference), std::string::npos) << reference;
    }
}

TEST(ReportHtml, EmptyComparison) {
    EXPECT_EQ(markup_error(to_html(Comparison{})), "");
    EXPECT_FALSE(to_table(Comparison{}).empty());
    EXPECT_TRUE(nlohmann::json::accept(to_json(Comparison{})));
}

TEST(ReportTable, TellsTasksWithTheirErrorsInPoints) {
    const std::string table = to_table(comparison());
    EXPECT_NE(table.find("hellaswag, acc_norm"), std::string::npos) << table;
    EXPECT_NE(table.find("43.10 +- 0.50 %"), std::string::npos) << table;
    EXPECT_NE(table.find("30.00 +- 0.50 % (-13.10 points)"), std::string::npos) << table;
    EXPECT_NE(table.find("68.40 +- 1.10 % (same)"), std::string::npos) << table;
}

// Perplexities of different protocols are different measures.
TEST(ReportTable, ComparesEqualProtocolsOnly) {
    Comparison c = comparison();
    c.variants[1].perplexities[0].protocol = "another text";
    const std::string table = to_table(c);
    EXPECT_EQ(table.find("x 32.1"), std::string::npos) << table;
    EXPECT_NE(table.find("566.00"), std::string::npos) << table;
    EXPECT_NE(to_html(c).find("another text"), std::string::npos);
}

TEST(ReportHtml, ShowsErrorsOfWeightsAndQualityAgainstSize) {
    const std::string html = to_html(comparison());
    for (const char* part :
         {"Quality against size", "Error of the weights", "layer 2, weight matrix attn.q: 1.5",
          "Perplexity against size", "Mean accuracy against size", "Shared attention per layer",
          "2 of 3 weight matrices differ"})
        EXPECT_NE(html.find(part), std::string::npos) << part;
}

TEST(ReportMarkdown, HoldsTheTableAndTrustsNoText) {
    Comparison c = comparison();
    c.variants[1].name = "a | b\n# <b>x</b> `";
    c.variants[1].recipe = "steps:\n```\n# not a heading\n";
    c.variants[2].hashes = {{"x.gguf", "00` <b>"}};
    const std::string text = to_markdown(c);
    EXPECT_NE(text.find("| parameters stored | 134.52 M | 107.61 M (-20.0 %) |"), std::string::npos) << text;
    EXPECT_NE(text.find("a \\| b \\# &lt;b&gt;x&lt;/b&gt; \\`"), std::string::npos) << text;
    EXPECT_EQ(text.find("<b>"), std::string::npos);
    EXPECT_NE(text.find("````yaml\n"), std::string::npos) << text;
    EXPECT_NE(text.find("SHA-256 `" + std::string(64, 'b') + "`"), std::string::npos);
    EXPECT_NE(text.find("SHA-256 00\\` &lt;b&gt;"), std::string::npos) << text;
    EXPECT_NE(text.find("ratio=0.1"), std::string::npos);
    size_t columns = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("|")) continue;
        size_t bars = 0;
        for (size_t i = 0; i < line.size(); ++i)
            bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\') ? 1 : 0;
        if (columns == 0) columns = bars;
        EXPECT_EQ(bars, columns) << line;
    }
    EXPECT_EQ(columns, 5U);
    EXPECT_FALSE(to_markdown(Comparison{}).empty());
}

// Files are the same by content, whether or not config.json is included.
TEST(Report, SameFiles) {
    EXPECT_TRUE(same_files({{"a", "1"}, {"b", "2"}}, {{"x", "2"}, {"y", "1"}}));
    EXPECT_TRUE(same_files({{"a", "1"}}, {{"config.json", "9"}, {"a", "1"}}));
    EXPECT_FALSE(same_files({{"a", "1"}, {"b", "2"}}, {{"a", "1"}, {"b", "3"}}));
    EXPECT_FALSE(same_files({}, {{"a", "1"}}));
    EXPECT_FALSE(same_files({}, {}));
}

TEST(Markup, EscapesAndRepairs) {
    EXPECT_EQ(escape("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
    EXPECT_EQ(escape("\x01 \xFF ok"), "\xEF\xBF\xBD \xEF\xBF\xBD ok");
    EXPECT_EQ(escape("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
    EXPECT_EQ(shorten("abcdef", 6), "abcdef");
    EXPECT_EQ(shorten("abcdefg", 6), "abcde\xE2\x80\xA6");
    EXPECT_EQ(shorten("\xC3\xBC\xC3\xBC\xC3\xBC", 2), "\xC3\xBC\xE2\x80\xA6");
}

}  // namespace
}  // namespace refold
