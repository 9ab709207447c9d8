// Horizontal bar charts as SVG: one group of bars per category, one bar per series.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace refold {

struct BarSeries {
    std::string name;
    std::vector<std::optional<double>> values;  // per category; nothing is drawn as "not measured"
    std::vector<double> errors = {};            // plus or minus, per category; empty: none
};

struct BarChart {
    std::string label;  // accessible name
    std::string axis;   // quantity with its unit
    std::vector<std::string> categories;
    std::vector<BarSeries> series;
    std::function<std::string(double)> format;  // value at the end of a bar
    // Draws points on a logarithmic axis, where bars from zero have no meaning.
    bool logarithmic = false;
};

// An SVG element that takes its colors from the page's CSS variables (color.h).
std::string bar_chart_svg(const BarChart& chart);

}  // namespace refold
