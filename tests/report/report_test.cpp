#include "report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/expression_models.h"
#include "report/bar_chart.h"
#include "report/markup.h"

namespace refold {
namespace {

// Three layers of two KV groups with two query heads each; the second group of layer 2 uses the first one's
// of layer 0.
Model shared_model() {
    Model model;
    model.label = "hand-made";
    model.family = &find_family("llama");
    model.config.n_embd = 8;
    model.config.n_head = 4;
    model.config.n_head_kv = 2;
    model.config.head_dim = 2;
    model.topology = implied_topology(
        *model.family, 3, [](const std::string& name) { return name.find("bias") == std::string::npos; });
    auto& slots = model.topology.positions[2];
    slots[Slot::attn_q] = Heads{{{"blk.2.attn_q.weight", 0, 2}, {"blk.0.attn_q.weight", 0, 2}}};
    slots[Slot::attn_k] = Heads{{{"blk.2.attn_k.weight", 0, 1}, {"blk.0.attn_k.weight", 0, 1}}};
    return model;
}

size_t slot_index(const TopologyMap& map, Slot slot) {
    return static_cast<size_t>(std::find(map.slots.begin(), map.slots.end(), slot) - map.slots.begin());
}

Comparison comparison() {
    Comparison c;
    c.title = "Sharing & measuring";
    c.model = "tiny <b>model</b>";
    c.source = "tiny.gguf";
    c.sha256 = std::string(64, 'a');
    c.version = "0.1.0";
    c.date = "2025-01-02";
    c.machine = {"A processor", 2, uint64_t{24} << 30};
    c.commands = {"refold compress tiny.gguf -o out.gguf --method direct_share --set ratio=0.1"};
    c.notes = {"A note about what was measured."};
    Variant dense;
    dense.name = "dense";
    dense.file = c.source;
    dense.sha256 = c.sha256;
    dense.parameters = 134515008;
    dense.file_bytes = 98362432;
    dense.kv_bytes_per_token = 23040;
    dense.resident_weight_bytes = 97000000;
    dense.resident_set_bytes = 150000000;
    dense.perplexity = PerplexityFigure{17.65, 0.41, 4092, "excerpt, 4 windows of 1024"};
    dense.prefill = SpeedFigure{500.5, 450.25, 1.11};
    dense.decode = SpeedFigure{200.5, 180.25, 1.12};
    dense.prompt = "Why is the sky blue?";
    dense.generated = "<script>alert('https://example.org')</script> & \"more\"";
    Variant shared = dense;
    shared.name = "30 % shared";
    shared.recipe = "steps:\n  - method: direct_share\n    ratio: 0.3\n";
    shared.file = "shared.gguf";
    shared.sha256 = std::string(64, 'b');
    shared.parameters = 107612006;
    shared.perplexity->value = 566;
    shared.generated = "ends within a character: \xE2\x82";
    shared.topology = topology_map(shared_model());
    Variant unmeasured;
    unmeasured.name = "only planned";
    unmeasured.parameters = 121000000;
    c.variants = {dense, shared, unmeasured};
    return c;
}

// Tags must nest, attributes must be quoted, entities complete: enough to find broken markup.
std::string markup_error(const std::string& html) {
    std::vector<std::string> open;
    for (size_t i = 0; i < html.size(); ++i) {
        if (html[i] == '&') {
            const size_t end = html.find(';', i);
            if (end == std::string::npos || end - i > 8) return "bare & at " + html.substr(i, 40);
        }
        if (html[i] == '>') return "bare > at " + html.substr(i, 40);
        if (html[i] != '<') continue;
        const size_t start = ++i;
        bool quoted = false;
        for (; i < html.size() && (quoted || html[i] != '>'); ++i) {
            if (html[i] == '"') quoted = !quoted;
            if (html[i] == '<') return "< inside a tag: " + html.substr(start, 40);
        }
        if (i == html.size()) return "unfinished tag: " + html.substr(start, 40);
        const std::string tag = html.substr(start, i - start);
        if (tag[0] == '!' || tag.ends_with("/")) continue;
        if (tag[0] == '/') {
            if (open.empty() || open.back() != tag.substr(1))
                return "closes " + tag + " in " + (open.empty() ? "nothing" : open.back());
            open.pop_back();
        } else {
            open.push_back(tag.substr(0, tag.find_first_of(" \n")));
        }
    }
    return open.empty() ? "" : "not closed: " + open.back();
}

std::string without(std::string text, const std::string& part) {
    for (size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
    return text;
}

TEST(TopologyMap, FindsWhereHeadsComeFrom) {
    const TopologyMap map = topology_map(shared_model());
    const size_t q = slot_index(map, Slot::attn_q), k = slot_index(map, Slot::attn_k),
                 down = slot_index(map, Slot::ffn_down);
    ASSERT_EQ(map.rows.size(), 3U);
    ASSERT_EQ(map.rows[2][q].size(), 4U);
    EXPECT_FALSE(map.borrowed(2, q, 1));
    EXPECT_TRUE(map.borrowed(2, q, 2));
    EXPECT_EQ(map.rows[2][q][3].position, 0U);
    EXPECT_EQ(map.rows[2][q][3].head, 1);
    EXPECT_EQ(map.rows[0][q][1].borrowers, 1);
    EXPECT_EQ(map.rows[0][q][2].borrowers, 0);
    EXPECT_TRUE(map.borrowed(2, k, 1));
    ASSERT_EQ(map.rows[1][down].size(), 1U);
    EXPECT_FALSE(map.borrowed(1, down, 0));
    EXPECT_EQ(topology_summary(map),
              "3 positions; attn.q: 2 of 12 heads borrowed (16.7 %); attn.k: 1 of 6 heads borrowed (16.7 %)");
}

// A tensor that lost heads is renumbered; what it holds at 1 may be its position's head 2.
TEST(TopologyMap, NamesHeadsAsTheirOwnerCountsThem) {
    Model model = shared_model();
    model.topology.positions[1][Slot::attn_v] =
        Heads{{{"blk.0.attn_v.weight", 1, 1}, {"blk.1.attn_v.weight", 0, 1}}};
    model.topology.positions[2][Slot::attn_v] =
        Heads{{{"blk.1.attn_v.weight", 0, 1}, {"blk.2.attn_v.weight", 0, 1}}};
    const TopologyMap map = topology_map(model);
    const size_t v = slot_index(map, Slot::attn_v);
    EXPECT_FALSE(map.borrowed(1, v, 1));
    EXPECT_EQ(map.rows[2][v][0].position, 1U);
    EXPECT_EQ(map.rows[2][v][0].head, 1);
}

// Weights that only others use still belong to the position whose name they have.
TEST(TopologyMap, KnowsTheOwnerThatDoesNotUseItsWeights) {
    Model model = shared_model();
    model.topology.positions[1][Slot::attn_v] = Heads{{{"blk.0.attn_v.weight", 0, 2}}};
    model.topology.positions[2][Slot::attn_v] = Dense{"blk.1.attn_v.weight"};
    const TopologyMap map = topology_map(model);
    const size_t v = slot_index(map, Slot::attn_v);
    EXPECT_TRUE(map.borrowed(2, v, 0));
    EXPECT_EQ(map.rows[2][v][0].position, 1U);
    EXPECT_EQ(map.rows[2][v][0].head, -1);
    EXPECT_TRUE(map.borrowed(1, v, 0));
}

TEST(TopologyMap, TiedMatricesAreBorrowedWhole) {
    Model model = shared_model();
    model.topology.positions[1][Slot::ffn_up] = Dense{"blk.0.ffn_up.weight"};
    const TopologyMap map = topology_map(model);
    const size_t up = slot_index(map, Slot::ffn_up);
    EXPECT_TRUE(map.borrowed(1, up, 0));
    EXPECT_EQ(map.rows[0][up][0].borrowers, 1);
    EXPECT_NE(topology_summary(map).find("ffn.up: 1 of 3 matrices"), std::string::npos);
}

TEST(TopologyPicture, IsWellFormedAndTellsDetails) {
    Model model = shared_model();
    model.label = "a <model> & \"more\"";
    const std::string svg = topology_svg(model);
    EXPECT_EQ(markup_error(svg), "");
    EXPECT_NE(svg.find("layer 2, attn.q, head 3: weights of layer 0, head 1"), std::string::npos);
    EXPECT_NE(svg.find("layer 0, attn.k, head 0: own weights, also used in 1 later place"),
              std::string::npos);
    EXPECT_EQ(svg.find("<model>"), std::string::npos);
}

TEST(TopologyPicture, ShowsEveryExpression) {
    for (const auto& family : kExpressionFamilies) {
        for (const auto& [name, build] : expressions::cases()) {
            ExpressionBuilder builder(family);
            build(builder);
            const std::string svg = topology_svg(builder.finish());
            EXPECT_EQ(markup_error(svg), "") << family << " " << name;
            EXPECT_EQ(svg.find("nan"), std::string::npos) << family << " " << name;
        }
    }
}

TEST(TopologyPicture, TellsFactorsFromStoredMatrices) {
    ExpressionBuilder b("llama");
    EXPECT_EQ(topology_svg(b.finish()).find("in factors"), std::string::npos);
    b.at(1, Slot::ffn_down) = b.low_rank(1, Slot::ffn_down, 7);
    b.attention_tucker(2, {7, 5, 3});
    b.at(3, Slot::ffn_up) = b.plus(3, Slot::ffn_up, Dense{"blk.0.ffn_up.weight"}, 6);
    b.at(3, Slot::ffn_down) = b.at(1, Slot::ffn_down);
    const Model model = b.finish();
    const TopologyMap map = topology_map(model);
    const size_t q = slot_index(map, Slot::attn_q), k = slot_index(map, Slot::attn_k),
                 up = slot_index(map, Slot::ffn_up), down = slot_index(map, Slot::ffn_down);
    EXPECT_TRUE(map.factors[2][q].instead);
    EXPECT_EQ(map.factors[2][q].text, "Tucker 7 x 5 x 3");
    EXPECT_EQ(map.rows[2][k].size(), 2U);  // as many cells as the slot has heads, not the core
    EXPECT_FALSE(map.borrowed(2, k, 1));
    EXPECT_FALSE(map.factors[3][up].instead);
    EXPECT_EQ(map.factors[3][up].text, "LoRA 6");
    EXPECT_TRUE(map.borrowed(3, up, 0));
    EXPECT_TRUE(map.borrowed(3, down, 0));
    const std::string summary = topology_summary(map);
    EXPECT_NE(summary.find("ffn.down: 2 of 4 in factors"), std::string::npos) << summary;
    EXPECT_NE(summary.find("attn.q, attn.k, attn.v, attn.o: each 1 of 4 in factors"), std::string::npos)
        << summary;
    EXPECT_NE(summary.find("ffn.up: 1 of 4 with LoRA"), std::string::npos) << summary;
    const std::string svg = topology_svg(map, "x");
    for (const char* part :
         {"in factors", "with a LoRA of its own",
          "layer 1, ffn.down: own weights, also used "
          "in 1 later place, low rank 7",
          "layer 3, ffn.down: weights of layer 1, low rank 7", "layer 3, ffn.up: weights of layer 0, LoRA 6",
          "layer 2, attn.q: own weights, used here only, Tucker 7 x 5 x 3"}) {
        EXPECT_NE(svg.find(part), std::string::npos) << part;
    }
}

TEST(TopologyPicture, PrunedPositionsHaveFewerCells) {
    ExpressionBuilder b("llama");
    b.prune_heads(1, 1);
    b.prune_heads(2, 0);
    b.prune_ffn(3, 0);
    const TopologyMap map = topology_map(b.finish());
    const size_t q = slot_index(map, Slot::attn_q), down = slot_index(map, Slot::ffn_down);
    EXPECT_EQ(map.rows[0][q].size(), 4U);
    EXPECT_EQ(map.rows[1][q].size(), 2U);
    EXPECT_EQ(map.rows[2][q].size(), 0U);
    EXPECT_EQ(map.rows[3][down].size(), 0U);
    EXPECT_EQ(topology_summary(map), "4 positions, no sharing");
}

TEST(TopologyPicture, ShowsWhereAttentionComesFrom) {
    ExpressionBuilder b("llama");
    b.share_probabilities(1, 0);
    b.compensate(1, Slot::attn_comp);
    b.share_kv(3, 2);
    b.compensate(3, Slot::attn_comp);
    b.at(3, Slot::attn_comp) = b.low_rank(3, Slot::attn_comp, 5);
    const TopologyMap map = topology_map(b.finish());
    EXPECT_EQ(topology_summary(map),
              "4 positions; 1 with attention probabilities of another; 1 with keys and values of another; "
              "attn.comp: 1 of 2 in factors");
    const size_t q = slot_index(map, Slot::attn_q), v = slot_index(map, Slot::attn_v),
                 comp = slot_index(map, Slot::attn_comp);
    EXPECT_TRUE(map.replaced(1, q));
    EXPECT_FALSE(map.replaced(1, v));
    EXPECT_FALSE(map.replaced(0, q));
    EXPECT_TRUE(map.replaced(3, v));
    EXPECT_FALSE(map.replaced(3, q));
    EXPECT_EQ(map.rows[1][comp].size(), 1U);
    EXPECT_FALSE(map.borrowed(1, comp, 0));
    EXPECT_TRUE(map.rows[0][comp].empty());
    const std::string svg = topology_svg(map, "x");
    EXPECT_EQ(markup_error(svg), "");
    for (const char* part : {"layer 1, attn.q: none, attention probabilities of layer 0 instead",
                             "layer 1, attn.k: none, attention probabilities of layer 0 instead",
                             "layer 3, attn.v: none, keys and values of layer 2 instead",
                             "layer 1, attn.comp: own weights, used here only",
                             "layer 3, attn.comp: own weights, used here only, low rank 5", ">Wc<",
                             "attention of another layer"}) {
        EXPECT_NE(svg.find(part), std::string::npos) << part;
    }
    EXPECT_EQ(svg.find("layer 1, attn.v: none"), std::string::npos);
    EXPECT_EQ(svg.find("layer 3, attn.q: none"), std::string::npos);
    // Nothing of it in a model without.
    EXPECT_EQ(topology_svg(ExpressionBuilder("llama").finish()).find("attention of another layer"),
              std::string::npos);
    ExpressionBuilder alone("llama");
    alone.share_probabilities(1, 0);
    EXPECT_EQ(topology_summary(topology_map(alone.finish())),
              "4 positions; 1 with attention probabilities of another");
}

TEST(TopologyPicture, LoopsAreCounted) {
    ExpressionBuilder b("llama");
    b.loop(2);
    const std::string summary = topology_summary(topology_map(b.finish()));
    EXPECT_NE(summary.find("4 positions in 2 loops; attn.q, attn.o: each 8 of 16 heads borrowed (50.0 %)"),
              std::string::npos)
        << summary;
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
}

TEST(ReportJson, NumbersThatAreNotFiniteAreNull) {
    Comparison c = comparison();
    c.variants[1].perplexity->value = std::numeric_limits<double>::infinity();
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

TEST(BarChart, LogarithmicOnlyWhereNeeded) {
    EXPECT_FALSE(spans_decades({10.0, 70.0}));
    EXPECT_TRUE(spans_decades({10.0, std::nullopt, 90.0}));
    EXPECT_FALSE(spans_decades({std::nullopt}));
}

TEST(BarChart, SurvivesStrangeValues) {
    for (const bool logarithmic : {false, true}) {
        for (const double value : {0.0, 1e-30, 1.0, 1e30, std::numeric_limits<double>::infinity(),
                                   std::numeric_limits<double>::quiet_NaN()}) {
            const BarChart chart{.label = "l",
                                 .axis = "a",
                                 .categories = {"c"},
                                 .series = {{"s", {value}, {value}}},
                                 .format = [](double) { return std::string("v"); },
                                 .logarithmic = logarithmic};
            const std::string svg = bar_chart_svg(chart);
            EXPECT_EQ(markup_error(svg), "") << value;
            EXPECT_EQ(svg.find("nan"), std::string::npos) << value;
        }
    }
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
