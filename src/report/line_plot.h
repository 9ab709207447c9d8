// Line plots as SVG.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace refold {

struct Line {
    std::string name;
    std::vector<double> x, y;            // NaN in y: a gap
    std::vector<double> deviation = {};  // plus or minus, per point; empty: none
};

struct LinePlot {
    std::string label;           // accessible name
    std::string x_axis, y_axis;  // quantities with their units
    std::vector<Line> lines;
    std::function<std::string(double)> format;  // of y, for hovering over a point
    bool logarithmic = false;                   // y axis
    bool from_zero = false;                     // y axis begins at 0
    // The quantity that orders the lines, e.g. "layer": they get a color ramp, and the legend names the first
    // and the last.
    std::string order = "";
};

std::string line_plot_svg(const LinePlot& plot);

}  // namespace refold
