#include "report/color.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

namespace refold {
namespace {

using Rgb = std::array<double, 3>;

// Interpolates evenly spaced stops at `t` in [0, 1].
std::string mix(std::span<const Rgb> stops, double t) {
    const double at = std::clamp(t, 0.0, 1.0) * static_cast<double>(stops.size() - 1);
    const auto low = std::min(static_cast<size_t>(at), stops.size() - 2);
    const double part = at - static_cast<double>(low);
    const auto channel = [&](size_t i) {
        return static_cast<int>(std::lround(stops[low][i] * (1 - part) + stops[low + 1][i] * part));
    };
    return fmt::format("#{:02x}{:02x}{:02x}", channel(0), channel(1), channel(2));
}

// Lightness changes monotonically, so the scales also work without color vision.
constexpr std::array kSequentialLight = {Rgb{236, 242, 240}, Rgb{167, 210, 208}, Rgb{84, 160, 184},
                                         Rgb{42, 98, 156}, Rgb{25, 31, 92}};
constexpr std::array kSequentialDark = {Rgb{38, 42, 52}, Rgb{34, 76, 120}, Rgb{44, 128, 160},
                                        Rgb{110, 188, 180}, Rgb{232, 248, 214}};
constexpr std::array kDivergingLight = {Rgb{18, 66, 140}, Rgb{104, 158, 214}, Rgb{238, 236, 231},
                                        Rgb{226, 150, 88}, Rgb{138, 58, 6}};
constexpr std::array kDivergingDark = {Rgb{150, 200, 255}, Rgb{62, 112, 178}, Rgb{52, 51, 49},
                                       Rgb{176, 98, 40}, Rgb{255, 194, 134}};
constexpr std::array kRamp = {Rgb{64, 104, 220}, Rgb{0, 148, 168}, Rgb{36, 150, 72},
                              Rgb{176, 136, 0},  Rgb{222, 96, 24}, Rgb{200, 48, 120}};

constexpr std::array<const char*, kSeriesColors> kSeriesLight = {"#2a6fcf", "#c2611f", "#16845b", "#9a4fb0",
                                                                 "#8a7400", "#c9366f", "#1f8fa6", "#6c6a65"};
constexpr std::array<const char*, kSeriesColors> kSeriesDark = {"#5b9bf0", "#e08a4a", "#4fbf92", "#c58ad8",
                                                                "#cbb43c", "#f07ba6", "#5cc4d8", "#a8a59d"};

std::string level_hex(Scale scale, size_t level, bool dark) {
    const double t = static_cast<double>(level) / static_cast<double>(kScaleLevels - 1);
    if (scale == Scale::sequential) return mix(dark ? kSequentialDark : kSequentialLight, t);
    return mix(dark ? kDivergingDark : kDivergingLight, t);
}

char prefix(Scale scale) { return scale == Scale::sequential ? 'q' : 'd'; }

}  // namespace

std::string level_color(Scale scale, size_t level) {
    return fmt::format("var(--{}{},{})", prefix(scale), level, level_hex(scale, level, false));
}

size_t scale_level(double value, double low, double high) {
    const double t = high > low ? (value - low) / (high - low) : 0.5;
    const double level = std::clamp(t, 0.0, 1.0) * static_cast<double>(kScaleLevels);
    return std::min(static_cast<size_t>(level), kScaleLevels - 1);
}

std::string series_color(size_t series) {
    series %= kSeriesColors;
    return fmt::format("var(--series-{},{})", series + 1, kSeriesLight[series]);
}

std::string ramp_color(size_t index, size_t count) {
    return mix(kRamp, count > 1 ? static_cast<double>(index) / static_cast<double>(count - 1) : 0.0);
}

std::string color_variables(bool dark) {
    std::string out;
    for (size_t i = 0; i < kSeriesColors; ++i)
        out += fmt::format("--series-{}:{};", i + 1, (dark ? kSeriesDark : kSeriesLight)[i]);
    for (const Scale scale : {Scale::sequential, Scale::diverging}) {
        for (size_t level = 0; level < kScaleLevels; ++level)
            out += fmt::format("--{}{}:{};", prefix(scale), level, level_hex(scale, level, dark));
    }
    return out;
}

}  // namespace refold
