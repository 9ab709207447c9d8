#include "report/line_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/canvas.h"
#include "report/color.h"
#include "report/markup.h"

namespace refold {
namespace {

constexpr size_t kMarkedPoints = 48;  // per line; more markers would overlap
constexpr size_t kMostPoints = 96;    // per line
constexpr double kHeight = 236;

// Dashes distinguish lines whose colors do not.
constexpr std::array<const char*, 4> kDashes = {"", "5 3", "1.5 3", "8 3 2 3"};

class LineDrawing {
public:
    explicit LineDrawing(const LinePlot& plot) : plot_(plot) {}

    std::string str() {
        const double top = legend() + 18;
        const Frame frame(axis_x(), axis_y(), top, kHeight);
        const double bottom = frame.draw(canvas_, plot_.x_axis, plot_.y_axis);
        for (size_t i = 0; i < plot_.lines.size(); ++i) curve(frame, i);
        if (plot_.order.empty()) {
            for (size_t i = 0; i < plot_.lines.size(); ++i) points(frame, i);
        }
        return canvas_.str(plot_.label, bottom);
    }

private:
    std::string color(size_t line) const {
        return plot_.order.empty() ? series_color(line) : ramp_color(line, plot_.lines.size());
    }
    std::string stroke(size_t line) const {
        const char* dash = plot_.order.empty() ? kDashes[line % kDashes.size()] : "";
        return fmt::format("stroke:{};stroke-width:{};fill:none;stroke-linejoin:round{}{}", color(line),
                           plot_.order.empty() ? "1.8" : "1.1", *dash == 0 ? "" : ";stroke-dasharray:", dash);
    }
    bool drawable(double y) const { return std::isfinite(y) && (!plot_.logarithmic || y > 0); }

    double legend() {
        if (!plot_.order.empty()) {
            std::vector<std::string> colors;
            for (size_t i = 0; i < plot_.lines.size(); ++i) colors.push_back(color(i));
            const std::string first = plot_.lines.empty() ? "" : plot_.order + " " + plot_.lines.front().name,
                              last = plot_.lines.empty() ? "" : plot_.lines.back().name;
            const double x = text_width(first) + 12;
            canvas_.text(4, 12, "start", Ink::muted, first);
            canvas_.add(strip(x, 3, 120, colors));
            canvas_.text(x + 127, 12, "start", Ink::muted, last);
            return 12;
        }
        std::vector<LegendEntry> entries;
        bool deviations = false;
        for (size_t i = 0; i < plot_.lines.size(); ++i) {
            deviations = deviations || !plot_.lines[i].deviation.empty();
            entries.push_back(
                {fmt::format(R"svg(<path d="M-1 -4h14" style="{}"/>)svg", stroke(i)) +
                     fmt::format(R"svg(<circle cx="6" cy="-4" r="2.6" style="fill:{}"/>)svg", color(i)),
                 plot_.lines[i].name});
        }
        if (deviations)
            entries.push_back(
                {R"svg(<path d="M6 -10v11M3 -10h6M3 1h6" style="stroke:var(--muted,#55534e);fill:none"/>)svg",
                 "± 1 standard deviation"});
        return canvas_.legend(entries, 12);
    }

    Axis axis_x() const {
        std::vector<double> all;
        for (const Line& line : plot_.lines) all.insert(all.end(), line.x.begin(), line.x.end());
        const auto range = range_of(all);
        Axis axis = linear_axis(range ? range->first : 0, range ? range->second : 1);
        // The x axis ends at the data, which are layers, ranks or steps.
        if (range && range->second > range->first) {
            axis.low = range->first;
            axis.high = range->second;
            std::erase_if(axis.ticks, [&](double t) { return t < axis.low || t > axis.high; });
        }
        return axis;
    }

    Axis axis_y() const {
        std::vector<double> all;
        for (const Line& line : plot_.lines) {
            for (size_t i = 0; i < line.y.size(); ++i) {
                const double deviation =
                    i < line.deviation.size() && std::isfinite(line.deviation[i]) ? line.deviation[i] : 0;
                all.push_back(line.y[i] - deviation);
                all.push_back(line.y[i] + deviation);
            }
        }
        const auto range = range_of(all, plot_.logarithmic);
        if (!range) return plot_.logarithmic ? logarithmic_axis(1, 10) : linear_axis(0, 1);
        if (plot_.logarithmic) return logarithmic_axis(range->first, range->second);
        return linear_axis(plot_.from_zero ? std::min(0.0, range->first) : range->first, range->second);
    }

    void curve(const Frame& frame, size_t i) {
        const Line& line = plot_.lines[i];
        const size_t n = std::min(line.x.size(), line.y.size());
        const size_t step = std::max<size_t>(1, n / kMostPoints);
        std::string d;
        bool open = false;
        for (size_t p = 0; p < n; p += step) {
            if (!drawable(line.y[p]) || !std::isfinite(line.x[p])) {
                open = false;
                continue;
            }
            d += fmt::format("{}{:.1f} {:.1f}", open ? "L" : "M", frame.x(line.x[p]), frame.y(line.y[p]));
            open = true;
        }
        if (d.empty()) return;
        canvas_.add(fmt::format(R"svg(<path d="{}" style="{}"><title>{}</title></path>)svg", d, stroke(i),
                                escape(plot_.order.empty() ? line.name : plot_.order + " " + line.name)));
    }

    void points(const Frame& frame, size_t i) {
        const Line& line = plot_.lines[i];
        const size_t n = std::min(line.x.size(), line.y.size());
        if (n > kMarkedPoints) return;
        for (size_t p = 0; p < n; ++p) {
            if (!drawable(line.y[p]) || !std::isfinite(line.x[p])) continue;
            const double x = frame.x(line.x[p]);
            std::string more;
            if (p < line.deviation.size() && std::isfinite(line.deviation[p]) && line.deviation[p] > 0) {
                more = fmt::format(" ± {}", plot_.format(line.deviation[p]));
                canvas_.add(
                    fmt::format(R"svg(<path d="M{0:.1f} {1:.1f}V{2:.1f}" style="stroke:{3};opacity:.6"/>)svg",
                                x, frame.y(line.y[p] - line.deviation[p]),
                                frame.y(line.y[p] + line.deviation[p]), color(i)));
            }
            canvas_.add(fmt::format(
                R"svg(<circle cx="{:.1f}" cy="{:.1f}" r="2.6" style="fill:{}"><title>{}</title></circle>)svg",
                x, frame.y(line.y[p]), color(i),
                escape(fmt::format("{}, {} {:g}: {}{}", line.name, plot_.x_axis, line.x[p],
                                   plot_.format(line.y[p]), more))));
        }
    }

    const LinePlot& plot_;
    Canvas canvas_;
};

}  // namespace

std::string line_plot_svg(const LinePlot& plot) { return LineDrawing(plot).str(); }

}  // namespace refold
