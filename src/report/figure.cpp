#include "report/figure.h"

namespace refold {
namespace {

struct ChartDrawer {
    std::string label;
    std::string operator()(BarChart chart) const {
        chart.label = label + ", bar chart";
        return bar_chart_svg(chart);
    }
    std::string operator()(Heatmap map) const {
        map.label = label + ", heatmap";
        return heatmap_svg(map);
    }
    std::string operator()(LinePlot plot) const {
        plot.label = label + ", curves";
        return line_plot_svg(plot);
    }
    std::string operator()(ScatterPlot plot) const {
        plot.label = label + ", points";
        return scatter_plot_svg(plot);
    }
};

}  // namespace

std::string figure_svg(const Figure& figure, const std::string& about) {
    return std::visit(ChartDrawer{figure.title + (about.empty() ? "" : ", " + about)}, figure.chart);
}

}  // namespace refold
