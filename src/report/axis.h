// Chart axes: a range around the data with round ticks.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace refold {

struct Axis {
    double low = 0, high = 1;
    bool logarithmic = false;
    std::vector<double> ticks;

    // The fraction of the axis at which `value` lies: 0 at the low end and below it, 1 at the high end.
    double fraction(double value) const;
};

// Both accept any numbers and give a range that is not empty.
Axis linear_axis(double low, double high);
// For positive numbers.
Axis logarithmic_axis(double smallest, double largest);

// Smallest and largest finite value (with `positive` only above 0); nothing when there is none.
std::optional<std::pair<double, double>> range_of(std::span<const double> values, bool positive = false);

// True when values differ so much that the small ones would vanish on a linear axis.
bool spans_decades(std::span<const double> values);

// "0.25", "1e+06"
std::string tick_text(double tick);

}  // namespace refold
