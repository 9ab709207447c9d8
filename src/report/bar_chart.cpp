#include "report/bar_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/canvas.h"
#include "report/color.h"
#include "report/markup.h"

namespace refold {
namespace {

double error_of(const BarSeries& series, size_t category) {
    const double error = category < series.errors.size() ? series.errors[category] : 0;
    return std::isfinite(error) && error > 0 ? error : 0;
}

Axis axis_of(const BarChart& chart) {
    std::vector<double> ends;
    for (const auto& series : chart.series) {
        for (size_t i = 0; i < series.values.size(); ++i) {
            if (!series.values[i]) continue;
            ends.push_back(*series.values[i] + error_of(series, i));
            ends.push_back(*series.values[i] - error_of(series, i));
        }
    }
    if (const auto range = range_of(ends, true); chart.logarithmic && range)
        return logarithmic_axis(range->first, range->second);
    const auto range = range_of(ends);
    return linear_axis(0, range ? std::max(range->second, 0.0) : 1);
}

class BarDrawing {
public:
    explicit BarDrawing(const BarChart& chart)
        : chart_(chart), axis_(axis_of(chart)), bar_height_(chart.series.size() > 3 ? 11 : 14) {}

    std::string str() {
        legend();
        const double top = y_;
        const std::string head = canvas_.take();
        for (size_t c = 0; c < chart_.categories.size(); ++c) category(c);
        const std::string bars = canvas_.take();
        canvas_.add(head);
        scale(top);
        canvas_.add(bars);
        return canvas_.str(chart_.label, y_);
    }

private:
    static constexpr double kLeft = 8, kRoomForValue = 88;

    double x_of(double value) const {
        return kLeft + std::clamp(axis_.fraction(value), 0.0, 1.0) * (Canvas::kWidth - kLeft - kRoomForValue);
    }

    void legend() {
        std::vector<LegendEntry> entries;
        bool errors = false;
        for (size_t s = 0; s < chart_.series.size(); ++s) {
            const std::string color = series_color(s);
            entries.push_back(
                {axis_.logarithmic ? disc_mark(color) : square_mark(color), chart_.series[s].name});
            for (size_t c = 0; c < chart_.categories.size(); ++c)
                errors = errors || error_of(chart_.series[s], c) > 0;
        }
        if (errors)
            entries.push_back(
                {R"svg(<path d="M0 -4h11M0 -8v8M11 -8v8" style="stroke:var(--ink,#1b1b1a);fill:none"/>)svg",
                 "± 1 standard error"});
        y_ = canvas_.legend(entries, 12) + 12;
    }

    void category(size_t c) {
        y_ += 14;
        canvas_.text(kLeft, y_, "start", Ink::strong, shorten(chart_.categories[c], 46));
        y_ += axis_.logarithmic ? 3 : 5;
        for (size_t s = 0; s < chart_.series.size(); ++s) {
            bar(chart_.series[s], s, c);
            y_ += bar_height_ + 3;
        }
        y_ += 4;
    }

    void bar(const BarSeries& series, size_t s, size_t c) {
        const double middle = y_ + bar_height_ / 2;
        if (c >= series.values.size() || !series.values[c]) {
            canvas_.text(kLeft + 4, middle + 4, "start", Ink::muted, "not measured");
            return;
        }
        const double value = *series.values[c];
        const std::string words = chart_.format(value);
        const double x = std::isfinite(value) ? x_of(value) : x_of(axis_.high);
        const std::string title = fmt::format(
            "<title>{}</title>", escape(fmt::format("{}, {}: {}", chart_.categories[c], series.name, words)));
        if (axis_.logarithmic) {
            canvas_.add(
                fmt::format(R"svg(<circle cx="{:.1f}" cy="{:.1f}" r="5" style="fill:{}">{}</circle>)svg", x,
                            middle, series_color(s), title));
        } else {
            canvas_.add(fmt::format(
                R"svg(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2" style="fill:{}">{}</rect>)svg",
                kLeft, y_, std::max(x - kLeft, 1.0), bar_height_, series_color(s), title));
        }
        double end = axis_.logarithmic ? x + 5 : x;
        if (const double error = error_of(series, c); error > 0 && std::isfinite(value)) {
            const double low = x_of(std::max(value - error, axis_.low)), high = x_of(value + error);
            canvas_.add(fmt::format(
                R"svg(<path d="M{:.1f} {:.1f}H{:.1f}M{:.1f} {:.1f}v8M{:.1f} {:.1f}v8" style="stroke:var(--ink,#1b1b1a);fill:none"/>)svg",
                low, middle, high, low, middle - 4, high, middle - 4));
            end = std::max(end, high);
        }
        canvas_.text(end + 6, middle + 4, "start", Ink::number, words);
    }

    // Draws grid lines behind the bars, and tick labels and the axis name below them.
    void scale(double top) {
        for (const double tick : axis_.ticks) canvas_.line(x_of(tick), top, x_of(tick), y_);
        y_ += 14;
        double free_from = 0;
        for (const double tick : axis_.ticks) {
            const std::string words = tick_text(tick);
            const double half = text_width(words) / 2;
            if (x_of(tick) - half < free_from && free_from > 0) continue;
            canvas_.text(x_of(tick), y_, "middle", Ink::muted_number, words);
            free_from = x_of(tick) + half + 4;
        }
        y_ += 18;
        canvas_.text(kLeft, y_, "start", Ink::muted,
                     chart_.axis + (axis_.logarithmic ? ", logarithmic" : ""));
        y_ += 6;
    }

    const BarChart& chart_;
    Axis axis_;
    double bar_height_;
    Canvas canvas_;
    double y_ = 0;
};

}  // namespace

std::string bar_chart_svg(const BarChart& chart) { return BarDrawing(chart).str(); }

}  // namespace refold
