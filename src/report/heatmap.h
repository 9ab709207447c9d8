// Matrices as SVG: colored cells with a color legend.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "report/color.h"

namespace refold {

struct Heatmap {
    std::string label;                        // accessible name
    std::string x_axis, y_axis;               // meaning of columns and rows
    std::vector<std::string> columns, rows;   // names
    std::vector<std::vector<double>> values;  // [row][column]; NaN: no cell
    std::string unit;                         // quantity of the colors with its unit
    std::function<std::string(double)> format;
    Scale scale = Scale::sequential;
    // Range of the colors; default: the range of the values, symmetric around 0 for a diverging scale.
    std::optional<double> low{}, high{};
    std::vector<std::vector<std::string>> details{};  // [row][column]: more text for hovering
};

// Unless there are too many, cells show their values when the pointer hovers over them. Beyond kHeatmapCells
// per side neighbors are averaged, and the picture says so.
constexpr size_t kHeatmapCells = 288;
std::string heatmap_svg(const Heatmap& map);

}  // namespace refold
