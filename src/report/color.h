// The colors of all figures. Pages define them as CSS variables for light and dark mode; figures outside such
// a page use the light colors.
#pragma once

#include <cstddef>
#include <string>

namespace refold {

enum class Scale {
    sequential,  // from background to ink: larger values contrast more with the page, in both themes
    diverging,   // blue below, orange above a neutral middle
};

constexpr size_t kScaleLevels = 17;  // odd, so that a diverging scale has a middle

// The color of a level in [0, kScaleLevels), as a value for CSS `fill`.
std::string level_color(Scale scale, size_t level);
// The level of a value within [low, high]; values outside are clamped.
size_t scale_level(double value, double low, double high);

constexpr size_t kSeriesColors = 8;
// Colors of separate series; they repeat after kSeriesColors.
std::string series_color(size_t series);

// Colors of ordered items such as layers: hues of similar lightness that change gradually.
std::string ramp_color(size_t index, size_t count);

// Definitions of all variables, for a style sheet rule.
std::string color_variables(bool dark);

}  // namespace refold
