#include "report/bar_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/markup.h"

namespace refold {
namespace {

struct Axis {
    double low = 0, high = 1;
    bool logarithmic = false;
    std::vector<double> ticks;

    // 0 at the left end, 1 at the right one.
    double place(double value) const {
        if (logarithmic) return std::log(value / low) / std::log(high / low);
        return (value - low) / (high - low);
    }
};

Axis linear_axis(double largest) {
    Axis axis;
    const double rough = (largest > 0 ? largest : 1.0) / 4;
    const double magnitude = std::pow(10.0, std::floor(std::log10(rough)));
    double step = 10 * magnitude;
    for (const double factor : {5.0, 2.5, 2.0, 1.0}) {
        if (factor * magnitude >= rough) step = factor * magnitude;
    }
    axis.high = std::max(largest, step);
    for (int i = 0; step * i <= axis.high * 1.0001; ++i) axis.ticks.push_back(step * i);
    return axis;
}

Axis logarithmic_axis(double smallest, double largest) {
    Axis axis;
    axis.logarithmic = true;
    std::vector<double> grid;
    for (int decade = static_cast<int>(std::floor(std::log10(smallest))) - 1;
         decade <= static_cast<int>(std::log10(largest)) + 1; ++decade) {
        for (const double factor : {1.0, 2.0, 5.0}) grid.push_back(factor * std::pow(10.0, decade));
    }
    const auto after = std::upper_bound(grid.begin(), grid.end(), smallest * 0.95);
    const auto end = std::lower_bound(grid.begin(), grid.end(), largest * 1.05);
    axis.ticks.assign(after - 1, end + 1);
    axis.low = axis.ticks.front();
    axis.high = axis.ticks.back();
    while (axis.ticks.size() > 7) {
        // Only powers of ten, then only every other one, when there is no room for more.
        std::vector<double> fewer;
        for (const double tick : axis.ticks) {
            const double exponent = std::log10(tick);
            if (std::abs(exponent - std::round(exponent)) < 1e-9) fewer.push_back(tick);
        }
        if (fewer.size() == axis.ticks.size()) {
            fewer.clear();
            for (size_t i = 0; i < axis.ticks.size(); i += 2) fewer.push_back(axis.ticks[i]);
        }
        axis.ticks = fewer;
    }
    return axis;
}

Axis axis_of(const BarChart& chart) {
    double smallest = std::numeric_limits<double>::infinity(), largest = 0;
    for (const auto& series : chart.series) {
        for (size_t i = 0; i < series.values.size(); ++i) {
            if (!series.values[i] || !std::isfinite(*series.values[i])) continue;
            const double error =
                i < series.errors.size() && std::isfinite(series.errors[i]) ? series.errors[i] : 0;
            largest = std::max(largest, *series.values[i] + error);
            const double below = *series.values[i] - error;
            if (below > 0) smallest = std::min(smallest, below);
        }
    }
    if (chart.logarithmic && std::isfinite(smallest) && largest > 0)
        return logarithmic_axis(smallest, largest);
    return linear_axis(largest);
}

class Drawing {
public:
    explicit Drawing(const BarChart& chart) : chart_(chart), axis_(axis_of(chart)) {}

    std::string str() {
        legend();
        const double top = y_;
        std::string grid_and_bars = std::move(body_);
        body_.clear();
        for (size_t c = 0; c < chart_.categories.size(); ++c) category(c);
        const std::string bars = std::move(body_);
        body_ = std::move(grid_and_bars);
        scale(top);
        body_ += bars;
        return fmt::format(
                   R"svg(<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{}" viewBox="0 0 {} {:.0f}" )svg"
                   R"svg(font-size="12" font-family="system-ui,sans-serif" style="fill:var(--ink,#1b1b1a)">)svg",
                   escape(chart_.label), kWidth, y_) +
               body_ + "</svg>";
    }

private:
    static constexpr int kWidth = 352;
    static constexpr double kLeft = 8, kRoomForValue = 88, kBar = 14;

    double x_of(double value) const {
        return kLeft + std::clamp(axis_.place(value), 0.0, 1.0) * (kWidth - kLeft - kRoomForValue);
    }
    static std::string colour(size_t series) {
        return fmt::format("var(--series-{},{})", series + 1, series == 0 ? "#2a6fcf" : "#c2611f");
    }

    void text(double x, double y, const char* anchor, const char* style, const std::string& words) {
        body_ += fmt::format(R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" style="{}">{}</text>)svg", x,
                             y, anchor, style, escape(words));
    }

    void legend() {
        double x = 0;
        y_ = 12;
        const auto entry = [&](const std::string& mark, const std::string& name) {
            // No font metrics here: a generous estimate.
            const double width = 18 + 6.6 * static_cast<double>(name.size()) + 14;
            if (x > 0 && x + width > kWidth) {
                x = 0;
                y_ += 18;
            }
            body_ += fmt::format(R"svg(<g transform="translate({:.1f} {:.1f})">{}</g>)svg", x, y_, mark);
            text(x + 16, y_, "start", kMuted, name);
            x += width;
        };
        bool errors = false;
        for (size_t s = 0; s < chart_.series.size(); ++s) {
            entry(axis_.logarithmic
                      ? fmt::format(R"svg(<circle cx="5.5" cy="-4" r="5" style="fill:{}"/>)svg", colour(s))
                      : fmt::format(R"svg(<rect y="-10" width="11" height="11" rx="2" style="fill:{}"/>)svg",
                                    colour(s)),
                  chart_.series[s].name);
            errors = errors || !chart_.series[s].errors.empty();
        }
        if (errors)
            entry(R"svg(<path d="M0 -4h11M0 -8v8M11 -8v8" style="stroke:var(--ink,#1b1b1a);fill:none"/>)svg",
                  "± 1 standard error");
        y_ += 12;
    }

    void category(size_t c) {
        y_ += 14;
        text(kLeft, y_, "start", "font-weight:600", shorten(chart_.categories[c], 46));
        y_ += axis_.logarithmic ? 3 : 5;
        for (size_t s = 0; s < chart_.series.size(); ++s) {
            bar(chart_.series[s], s, c);
            y_ += kBar + 3;
        }
        y_ += 4;
    }

    void bar(const BarSeries& series, size_t s, size_t c) {
        const double middle = y_ + kBar / 2;
        if (c >= series.values.size() || !series.values[c]) {
            text(kLeft + 4, middle + 4, "start", kMuted, "not measured");
            return;
        }
        const double value = *series.values[c];
        const std::string words = chart_.format(value);
        const double x = std::isfinite(value) ? x_of(value) : x_of(axis_.high);
        const double width = std::max(x - kLeft, 1.0);
        const std::string title = fmt::format(
            "<title>{}</title>", escape(fmt::format("{}, {}: {}", chart_.categories[c], series.name, words)));
        if (axis_.logarithmic) {
            body_ += fmt::format(R"svg(<circle cx="{:.1f}" cy="{:.1f}" r="5" style="fill:{}">{}</circle>)svg",
                                 x, middle, colour(s), title);
        } else {
            body_ += fmt::format(
                R"svg(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2" style="fill:{}">{}</rect>)svg",
                kLeft, y_, width, kBar, colour(s), title);
        }
        double end = axis_.logarithmic ? x + 5 : x;
        if (c < series.errors.size() && std::isfinite(series.errors[c]) && series.errors[c] > 0) {
            const double low = x_of(std::max(value - series.errors[c], axis_.logarithmic ? axis_.low : 0.0)),
                         high = x_of(value + series.errors[c]);
            body_ += fmt::format(
                R"svg(<path d="M{:.1f} {:.1f}H{:.1f}M{:.1f} {:.1f}v8M{:.1f} {:.1f}v8" style="stroke:var(--ink,#1b1b1a);fill:none"/>)svg",
                low, middle, high, low, middle - 4, high, middle - 4);
            end = std::max(end, high);
        }
        text(end + 6, middle + 4, "start", kNumber, words);
    }

    // Grid lines behind the bars, numbers and the axis' name below them.
    void scale(double top) {
        for (const double tick : axis_.ticks) {
            const double x = x_of(tick);
            body_ += fmt::format(
                R"svg(<path d="M{:.1f} {:.1f}V{:.1f}" style="stroke:var(--grid,#dedbd4);fill:none"/>)svg", x,
                top, y_);
        }
        y_ += 14;
        for (const double tick : axis_.ticks)
            text(x_of(tick), y_, "middle", kNumberMuted, fmt::format("{:g}", tick));
        y_ += 18;
        text(kLeft, y_, "start", kMuted, chart_.axis + (axis_.logarithmic ? ", logarithmic" : ""));
        y_ += 6;
    }

    static constexpr const char* kMuted = "fill:var(--muted,#55534e)";
    static constexpr const char* kNumber = "font-variant-numeric:tabular-nums";
    static constexpr const char* kNumberMuted = "fill:var(--muted,#55534e);font-variant-numeric:tabular-nums";

    const BarChart& chart_;
    Axis axis_;
    std::string body_;
    double y_ = 0;
};

}  // namespace

std::string bar_chart_svg(const BarChart& chart) { return Drawing(chart).str(); }

bool spans_decades(const std::vector<std::optional<double>>& values) {
    double smallest = std::numeric_limits<double>::infinity(), largest = 0;
    for (const auto& value : values) {
        if (!value || !(*value > 0) || !std::isfinite(*value)) continue;
        smallest = std::min(smallest, *value);
        largest = std::max(largest, *value);
    }
    return largest > 8 * smallest;
}

}  // namespace refold
