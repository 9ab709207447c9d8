// Figures must be well-formed for any numbers and names, and must show their data.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "report/analysis_figures.h"
#include "report/axis.h"
#include "report/color.h"
#include "report/figure.h"
#include "report/markup_check.h"

namespace refold {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<double> kStrange = {0.0, -1.0, 1e-300, 1e300, -1e300, 5e-324, kInfinity, -kInfinity, kNan};
constexpr const char* kHostile = "<script>\"x\" & 'y'</script>\xFF";

std::string words(double value) { return std::isnan(value) ? "none" : std::to_string(value); }

// No chart prints NaN or infinity, and names are escaped.
void expect_sound(const std::string& svg) {
    EXPECT_EQ(markup_error(svg), "") << svg;
    for (const char* bad : {"nan", "inf", "<script"}) EXPECT_EQ(svg.find(bad), std::string::npos) << bad;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Axis, HoldsAnyRange) {
    for (const double low : kStrange) {
        for (const double high : kStrange) {
            if (!std::isfinite(low) || !std::isfinite(high)) continue;
            const Axis linear = linear_axis(low, high);
            EXPECT_GT(linear.high, linear.low) << low << " " << high;
            EXPECT_FALSE(linear.ticks.empty());
            if (!(low > 0) || high < low) continue;
            const Axis logarithmic = logarithmic_axis(low, high);
            EXPECT_LE(logarithmic.low, std::max(low, 1e-300));
            EXPECT_LE(logarithmic.ticks.size(), 7U);
        }
    }
}

TEST(Axis, RoundNumbers) {
    const Axis axis = linear_axis(0, 134.5);
    EXPECT_EQ(axis.ticks, (std::vector<double>{0, 50, 100, 150}));
    EXPECT_DOUBLE_EQ(axis.fraction(75), 0.5);
    const Axis decades = logarithmic_axis(3, 4000);
    EXPECT_EQ(decades.low, 2);
    EXPECT_EQ(decades.high, 5000);
}

TEST(Axis, LogarithmicOnlyWhereNeeded) {
    EXPECT_FALSE(spans_decades(std::vector{10.0, 70.0}));
    EXPECT_TRUE(spans_decades(std::vector{10.0, kNan, 90.0}));
    EXPECT_FALSE(spans_decades(std::vector<double>{}));
}

TEST(Color, ScalesRiseFromTheGroundInBothThemes) {
    for (const bool dark : {false, true}) {
        const std::string css = color_variables(dark);
        for (const char* name : {"--series-1:", "--series-8:", "--q0:", "--q16:", "--d0:", "--d16:"})
            EXPECT_TRUE(has(css, name)) << name;
    }
    EXPECT_NE(color_variables(false), color_variables(true));
    EXPECT_EQ(scale_level(-5, 0, 1), 0U);
    EXPECT_EQ(scale_level(5, 0, 1), kScaleLevels - 1);
    EXPECT_EQ(scale_level(0, -1, 1), kScaleLevels / 2);
    EXPECT_EQ(series_color(0), series_color(kSeriesColors));
}

TEST(BarChart, SurvivesStrangeValues) {
    for (const bool logarithmic : {false, true}) {
        for (const double value : kStrange) {
            const BarChart chart{.label = kHostile,
                                 .axis = kHostile,
                                 .categories = {kHostile},
                                 .series = {{kHostile, {value}, {value}}},
                                 .format = [](double) { return std::string(kHostile); },
                                 .logarithmic = logarithmic};
            expect_sound(bar_chart_svg(chart));
        }
    }
    expect_sound(bar_chart_svg({.label = "", .axis = "", .categories = {}, .series = {}, .format = words}));
}

TEST(BarChart, SaysWhatIsMissing) {
    const std::string svg = bar_chart_svg({.label = "l",
                                           .axis = "tokens per second",
                                           .categories = {"dense", "shared"},
                                           .series = {{"own", {2.0, std::nullopt}, {0.25}}},
                                           .format = [](double v) { return std::to_string(v); }});
    for (const char* part : {"2.000000", "not measured", "tokens per second", "± 1 standard error", ">own<"})
        EXPECT_TRUE(has(svg, part)) << part;
}

Heatmap square(size_t n, double (*value)(size_t, size_t)) {
    Heatmap map{.label = "l",
                .x_axis = "column",
                .y_axis = "row",
                .columns = {},
                .rows = {},
                .values = {},
                .unit = "cosine (no unit)",
                .format = [](double v) { return std::to_string(v); }};
    for (size_t r = 0; r < n; ++r) {
        map.rows.push_back(std::to_string(r));
        map.columns.push_back(std::to_string(r));
        map.values.emplace_back();
        for (size_t c = 0; c < n; ++c) map.values.back().push_back(value(r, c));
    }
    return map;
}

TEST(Heatmap, TellsValuesAndAxes) {
    Heatmap map = square(3, [](size_t r, size_t c) { return r == c ? kNan : static_cast<double>(r + c); });
    map.details = {{"", "from there"}};
    const std::string svg = heatmap_svg(map);
    expect_sound(svg);
    for (const char* part : {"row 0, column 1: 1.000000, from there", "row 2, column 1: 3.000000", ">column<",
                             ">row<", "cosine (no unit)", "empty: none"})
        EXPECT_TRUE(has(svg, part)) << part;
    EXPECT_FALSE(has(svg, "row 1, column 1"));
    // The ends of the scale.
    EXPECT_TRUE(has(svg, level_color(Scale::sequential, 0)) &&
                has(svg, level_color(Scale::sequential, kScaleLevels - 1)));
}

TEST(Heatmap, DivergingScalesAreSymmetric) {
    Heatmap map = square(2, [](size_t r, size_t c) { return r == c ? 0.0 : -0.5; });
    map.scale = Scale::diverging;
    const std::string svg = heatmap_svg(map);
    EXPECT_TRUE(has(svg, "0.500000"));
    EXPECT_TRUE(has(svg, "fill:" + level_color(Scale::diverging, kScaleLevels / 2)));
}

TEST(Heatmap, LargeOnesStaySmallFiles) {
    const std::string svg =
        heatmap_svg(square(1000, [](size_t r, size_t c) { return r < 500 && c < 500 ? 1.0 : 0.0; }));
    expect_sound(svg);
    EXPECT_LT(svg.size(), 2U << 20);
    EXPECT_TRUE(has(svg, "Every cell is the mean of 4 x 4 values."));
    EXPECT_TRUE(has(svg, "0.000000") && has(svg, "1.000000"));
}

TEST(Heatmap, SurvivesStrangeValues) {
    for (const double value : kStrange) {
        Heatmap map{.label = kHostile,
                    .x_axis = kHostile,
                    .y_axis = kHostile,
                    .columns = {kHostile, "b"},
                    .rows = {kHostile},
                    .values = {{value, 1.0}},
                    .unit = kHostile,
                    .format = [](double) { return std::string(kHostile); },
                    .details = {{kHostile}}};
        for (const Scale scale : {Scale::sequential, Scale::diverging}) {
            map.scale = scale;
            expect_sound(heatmap_svg(map));
        }
    }
    Heatmap ragged{.label = "",
                   .x_axis = "",
                   .y_axis = "",
                   .columns = {"a", "b"},
                   .rows = {"0", "1"},
                   .values = {{1.0}},
                   .unit = "",
                   .format = words};
    expect_sound(heatmap_svg(ragged));
    expect_sound(heatmap_svg({.label = "",
                              .x_axis = "",
                              .y_axis = "",
                              .columns = {},
                              .rows = {},
                              .values = {},
                              .unit = "",
                              .format = words}));
}

TEST(LinePlot, TellsPointsAndLegends) {
    LinePlot plot{
        .label = "l",
        .x_axis = "layer",
        .y_axis = "cosine (no unit)",
        .lines = {{"attention", {0, 1, 2}, {0.5, kNan, 0.75}, {0.125, 0, 0}}, {"FFN", {0, 1}, {0.25, 0.5}}},
        .format = [](double v) { return std::to_string(v); }};
    std::string svg = line_plot_svg(plot);
    expect_sound(svg);
    for (const char* part : {"attention, layer 0: 0.500000 ± 0.125000", "FFN, layer 1: 0.500000", ">layer<",
                             ">cosine (no unit)<", ">attention<", "± 1 standard deviation"})
        EXPECT_TRUE(has(svg, part)) << part;
    EXPECT_FALSE(has(svg, "attention, layer 1"));
    plot.order = "layer";
    svg = line_plot_svg(plot);
    expect_sound(svg);
    EXPECT_TRUE(has(svg, "layer attention") && has(svg, ramp_color(1, 2)));
    plot.logarithmic = true;
    EXPECT_TRUE(has(line_plot_svg(plot), "cosine (no unit), logarithmic"));
}

TEST(LinePlot, SurvivesStrangeValues) {
    for (const bool logarithmic : {false, true}) {
        for (const double value : kStrange) {
            expect_sound(
                line_plot_svg({.label = kHostile,
                               .x_axis = kHostile,
                               .y_axis = kHostile,
                               .lines = {{kHostile, {0, value}, {value, 2}, {value, value}}, {"b", {}, {}}},
                               .format = [](double) { return std::string(kHostile); },
                               .logarithmic = logarithmic}));
        }
    }
    expect_sound(line_plot_svg({.label = "", .x_axis = "", .y_axis = "", .lines = {}, .format = words}));
}

ScatterPlot scatter(std::vector<ScatterPoint> points, bool small_is_good = true) {
    return {.label = "l",
            .x_axis = "file size (MiB)",
            .y_axis = "perplexity",
            .points = std::move(points),
            .format_x = [](double v) { return std::to_string(v) + " MiB"; },
            .format_y = [](double v) { return std::to_string(v); },
            .small_is_good = small_is_good};
}

TEST(ScatterPlot, FrontHoldsWhatNothingBeats) {
    const std::vector<ScatterPoint> points = {{"dense", 100, 10},
                                              {"worse and larger", 110, 11},
                                              {"half", 50, 20},
                                              {"as large, worse", 50, 25},
                                              {"none", 1, kNan}};
    EXPECT_EQ(pareto_front(scatter(points)), (std::vector<size_t>{2, 0}));
    EXPECT_EQ(pareto_front(scatter(points, false)), (std::vector<size_t>{3}));
    EXPECT_TRUE(pareto_front(scatter({})).empty());
}

TEST(ScatterPlot, NamesEveryPointOnce) {
    std::vector<ScatterPoint> points;
    // Too close for all labels to have room.
    for (int i = 0; i < 40; ++i)
        points.push_back({"model number " + std::to_string(100 + i), 100.0 + i * 0.01, 20});
    const std::string svg = scatter_plot_svg(scatter(points));
    expect_sound(svg);
    for (int i = 0; i < 40; ++i) {
        const std::string name = "model number " + std::to_string(100 + i);
        const bool beside = has(svg, ">" + name + "</text>"), below = has(svg, ">" + name + ": ");
        EXPECT_TRUE(beside || below) << name;
    }
    EXPECT_TRUE(has(svg, ">file size (MiB)<") && has(svg, ">perplexity<") && has(svg, "best so far"));
}

TEST(ScatterPlot, SurvivesStrangeValues) {
    for (const bool logarithmic : {false, true}) {
        for (const double value : kStrange) {
            ScatterPlot plot = scatter({{kHostile, value, 1, value}, {kHostile, 1, value, value}});
            plot.format_x = plot.format_y = [](double) { return std::string(kHostile); };
            plot.logarithmic = logarithmic;
            expect_sound(scatter_plot_svg(plot));
        }
    }
    expect_sound(scatter_plot_svg(scatter({})));
}

// The output of `refold analyze` for two layers of two heads.
nlohmann::json analysis() {
    return nlohmann::json::parse(R"({
      "model": "m", "layers": 2, "text": {"name": "t.txt", "tokens": 96},
      "softmax": {"average": 0.5, "maximum": 0.5, "layer_cosine": [[1, 0.5], [0.5, 1]]},
      "heads": {"heads": ["0.0", "0.1", "1.0", "1.1"],
        "head_cosine": [[1, 0.1, 0.2, 0.3], [0.1, 1, 0.4, 0.9], [0.2, 0.4, 1, null], [0.3, 0.9, null, 1]],
        "best_matches": [
          {"layer": 0, "head": 0, "former_layer": null, "former_head": null, "cosine": null},
          {"layer": 1, "head": 0, "former_layer": 0, "former_head": 1, "cosine": 0.4},
          {"layer": 1, "head": 1, "former_layer": 0, "former_head": 1, "cosine": 0.9}]},
      "modules": {"layers": [{"layer": 0, "attention": 0.9, "ffn": 0.8, "whole_layer": 0.7,
        "attention_standard_deviation": 0.01, "ffn_standard_deviation": 0.01, "whole_layer_standard_deviation": 0.01},
        {"layer": 1, "attention": null, "ffn": 0.6, "whole_layer": 0.5}]},
      "weights": {"attention_module_cosine": [[1, -0.01], [-0.01, 1]], "ffn_module_cosine": [[1, null], [null, 1]]},
      "spectra": {"matrices": [
        {"layers": [0], "slot": "attn.q", "rows": 4, "columns": 8, "rank_for_90_percent": 3, "singular_values": [4, 2, 1, 0]},
        {"layers": [1], "slot": "attn.q", "rows": 4, "columns": 8, "rank_for_90_percent": 1, "singular_values": [8, 1, 0.5, 0.25]}]}
    })");
}

TEST(AnalysisFigures, ShowEveryPart) {
    std::string all;
    for (const Figure& figure : analysis_figures(analysis())) {
        const std::string svg = figure_svg(figure, "m");
        expect_sound(svg);
        all += figure.title + "\n" + figure.caption + "\n" + svg;
    }
    for (const char* part :
         {"Softmax similarity of layers", "layer 0, layer 1: 0.500", "Text: t.txt, 96 tokens.",
          "Most similar earlier head, by attention maps", "layer 1, head 1: 0.900, layer 0, head 1",
          "Heads by attention maps", "head (layer.head) 0.1, head (layer.head) 1.1: 0.900",
          "Input and output of modules", "attention, layer 0: 0.900 ± 0.010", "Attention modules by weights",
          "layer 0, layer 1: -0.010", "Singular values of attn.q", "part of the largest, logarithmic",
          "Rank that holds 90 %", "layer 0, weight matrix attn.q: 0.750", "4 x 8"})
        EXPECT_TRUE(has(all, part)) << part;
    // The analysis has no FFN similarity.
    EXPECT_FALSE(has(all, "FFNs by weights"));
}

// Replaces every value of the analysis by an unexpected one.
TEST(AnalysisFigures, LeaveOutWhatIsNotAsExpected) {
    const nlohmann::json whole = analysis().flatten();
    for (const char* other : {"null", "-1", "1e300", "\"x\"", "[]", "{}", "[[]]"}) {
        for (const auto& [path, value] : whole.items()) {
            nlohmann::json changed = analysis();
            for (auto pointer = nlohmann::json::json_pointer(path); !pointer.empty();
                 pointer = pointer.parent_pointer()) {
                changed = analysis();
                changed[pointer] = nlohmann::json::parse(other);
                for (const Figure& figure : analysis_figures(changed)) {
                    const std::string error = markup_error(figure_svg(figure));
                    ASSERT_EQ(error, "") << pointer.to_string() << " " << other;
                }
            }
        }
    }
    EXPECT_TRUE(analysis_figures(nlohmann::json()).empty());
}

}  // namespace
}  // namespace refold
