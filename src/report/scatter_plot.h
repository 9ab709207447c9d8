// Scatter plots of named points as SVG, with their Pareto front.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace refold {

struct ScatterPoint {
    std::string name;
    double x = 0, y = 0;
    double error = 0;   // of y, plus or minus
    size_t series = 0;  // an index into ScatterPlot::series
};

struct ScatterPlot {
    std::string label;           // accessible name
    std::string x_axis, y_axis;  // quantities with their units
    std::vector<ScatterPoint> points;
    std::function<std::string(double)> format_x, format_y;
    bool small_is_good = true;                      // for y; small x is always good
    bool logarithmic = false;                       // y axis
    std::vector<std::string> series = {"a model"};  // names of the kinds of points
};

// Indices of the points that no other point beats in both x and y, ordered by x. Ignores points that are not
// finite.
std::vector<size_t> pareto_front(const ScatterPlot& plot);

// Labels are placed so that they cover neither points nor each other; labels without room go into the legend.
std::string scatter_plot_svg(const ScatterPlot& plot);

}  // namespace refold
