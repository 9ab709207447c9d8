#include "report/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace refold {
namespace {

// Keeps only powers of ten, then every other tick, until at most 7 are left.
void thin_out(std::vector<double>& ticks) {
    while (ticks.size() > 7) {
        std::vector<double> fewer;
        for (const double tick : ticks) {
            const double exponent = std::log10(tick);
            if (std::abs(exponent - std::round(exponent)) < 1e-9) fewer.push_back(tick);
        }
        if (fewer.size() == ticks.size() || fewer.size() < 2) {
            fewer.clear();
            for (size_t i = 0; i < ticks.size(); i += 2) fewer.push_back(ticks[i]);
        }
        ticks = fewer;
    }
}

}  // namespace

double Axis::fraction(double value) const {
    if (!(value > low)) return 0;
    if (logarithmic) return std::log(value / low) / std::log(high / low);
    return (value - low) / (high - low);
}

Axis linear_axis(double low, double high) {
    // Avoids ranges so large or so small that the ticks would not be finite.
    for (double* end : {&low, &high}) *end = std::abs(*end) < 1e-300 ? 0 : std::clamp(*end, -1e300, 1e300);
    const double least = std::max({std::abs(low), std::abs(high), 1e-300}) * 1e-9;
    if (!(high - low > least)) high = low + (low == 0 ? 1.0 : std::abs(low));
    const double rough = (high - low) / 4;
    const double magnitude = std::pow(10.0, std::floor(std::log10(rough)));
    double step = 10 * magnitude;
    for (const double factor : {5.0, 2.5, 2.0, 1.0}) {
        if (factor * magnitude >= rough * 0.999) step = factor * magnitude;
    }
    const double first = std::floor(low / step + 1e-6), last = std::ceil(high / step - 1e-6);
    Axis axis;
    axis.low = first * step;
    axis.high = std::max(last, first + 1) * step;
    for (double i = first; i <= last && axis.ticks.size() < 12; ++i) axis.ticks.push_back(i * step);
    return axis;
}

Axis logarithmic_axis(double smallest, double largest) {
    smallest = std::clamp(smallest, 1e-300, 1e300);
    largest = std::clamp(largest, smallest, 1e300);
    std::vector<double> grid;
    for (int decade = static_cast<int>(std::floor(std::log10(smallest))) - 1;
         decade <= static_cast<int>(std::log10(largest)) + 1; ++decade) {
        for (const double factor : {1.0, 2.0, 5.0}) grid.push_back(factor * std::pow(10.0, decade));
    }
    const auto after = std::upper_bound(grid.begin(), grid.end(), smallest * 0.95);
    const auto end = std::lower_bound(grid.begin(), grid.end(), largest * 1.05);
    Axis axis;
    axis.logarithmic = true;
    axis.ticks.assign(after - 1, end + 1);
    axis.low = axis.ticks.front();
    axis.high = axis.ticks.back();
    thin_out(axis.ticks);
    return axis;
}

std::optional<std::pair<double, double>> range_of(std::span<const double> values, bool positive) {
    std::optional<std::pair<double, double>> range;
    for (const double value : values) {
        if (!std::isfinite(value) || (positive && !(value > 0))) continue;
        if (!range) range = {value, value};
        range->first = std::min(range->first, value);
        range->second = std::max(range->second, value);
    }
    return range;
}

bool spans_decades(std::span<const double> values) {
    const auto range = range_of(values, true);
    return range && range->second > 8 * range->first;
}

std::string tick_text(double tick) { return fmt::format("{:g}", tick == 0 ? 0.0 : tick); }

}  // namespace refold
