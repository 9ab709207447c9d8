// A chart with its title and caption.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "report/bar_chart.h"
#include "report/heatmap.h"
#include "report/line_plot.h"
#include "report/scatter_plot.h"

namespace refold {

using Chart = std::variant<BarChart, Heatmap, LinePlot, ScatterPlot>;

struct Figure {
    std::string title, caption;
    Chart chart;
};

// The figure as an SVG element. Its accessible name is the title and `about`, the figure's subject.
std::string figure_svg(const Figure& figure, const std::string& about = "");

}  // namespace refold
