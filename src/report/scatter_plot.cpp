#include "report/scatter_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "report/canvas.h"
#include "report/color.h"
#include "report/markup.h"

namespace refold {
namespace {

constexpr double kHeight = 270;
constexpr double kFont = 11;

struct Box {
    double left, top, right, bottom;
    bool overlaps(const Box& other) const {
        return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
    }
};

bool drawable(const ScatterPlot& plot, const ScatterPoint& point) {
    return std::isfinite(point.x) && std::isfinite(point.y) && (!plot.logarithmic || point.y > 0);
}

class ScatterDrawing {
public:
    explicit ScatterDrawing(const ScatterPlot& plot) : plot_(plot) {
        for (size_t i = 0; i < plot.points.size(); ++i) {
            if (drawable(plot, plot.points[i])) drawn_.push_back(i);
        }
        front_ = pareto_front(plot);
    }

    std::string str() {
        const double top = canvas_.legend(entries(), 12) + 18;
        const Frame frame(axis_x(), axis_y(), top, kHeight);
        double bottom = frame.draw(canvas_, plot_.x_axis, plot_.y_axis);
        line(frame);
        for (const size_t i : drawn_) point(frame, i);
        const std::vector<size_t> left_over = labels(frame);
        for (const size_t i : left_over) {
            bottom += 16;
            canvas_.text(4, bottom, "start", Ink::muted, shorten(describe(i), 56));
        }
        return canvas_.str(plot_.label, bottom + (left_over.empty() ? 0 : 8));
    }

private:
    std::vector<LegendEntry> entries() const {
        const bool errors =
            std::any_of(drawn_.begin(), drawn_.end(), [&](size_t i) { return plot_.points[i].error > 0; });
        std::vector<LegendEntry> out;
        for (size_t s = 0; s < plot_.series.size(); ++s)
            out.push_back({disc_mark(series_color(s)), plot_.series[s]});
        out.push_back({fmt::format(R"svg(<path d="M-1 -4h14" style="{}"/>)svg", kFrontStyle),
                       plot_.small_is_good ? "best so far: none smaller with a lower value"
                                           : "best so far: none smaller with a higher value"});
        if (errors)
            out.push_back(
                {R"svg(<path d="M6 -10v11M3 -10h6M3 1h6" style="stroke:var(--ink,#1b1b1a);fill:none"/>)svg",
                 "± 1 standard error"});
        return out;
    }

    // Leaves room for labels at both ends.
    static Axis widened(double low, double high) {
        const double room = std::max((high - low) * 0.08, std::abs(high) * 0.005);
        return linear_axis(low >= 0 ? std::max(low - room, 0.0) : low - room, high + room);
    }
    Axis axis_x() const {
        std::vector<double> all;
        for (const size_t i : drawn_) all.push_back(plot_.points[i].x);
        const auto range = range_of(all);
        return range ? widened(range->first, range->second) : linear_axis(0, 1);
    }
    Axis axis_y() const {
        std::vector<double> all;
        for (const size_t i : drawn_) {
            all.push_back(plot_.points[i].y - plot_.points[i].error);
            all.push_back(plot_.points[i].y + plot_.points[i].error);
        }
        const auto range = range_of(all, plot_.logarithmic);
        if (!range) return linear_axis(0, 1);
        if (plot_.logarithmic) return logarithmic_axis(range->first, range->second);
        return widened(range->first, range->second);
    }

    // A staircase: a point is the best up to the x of the next one.
    void line(const Frame& frame) {
        if (front_.size() < 2) return;
        std::string d;
        double from_x = 0, from_y = 0;
        for (const size_t i : front_) {
            const double x = frame.x(plot_.points[i].x), y = frame.y(plot_.points[i].y);
            if (!d.empty()) {
                lines_.push_back({from_x, from_y - 1, x, from_y + 1});
                lines_.push_back({x - 1, std::min(from_y, y), x + 1, std::max(from_y, y)});
            }
            d += d.empty() ? fmt::format("M{:.1f} {:.1f}", x, y) : fmt::format("H{:.1f}V{:.1f}", x, y);
            from_x = x;
            from_y = y;
        }
        canvas_.add(fmt::format(R"svg(<path d="{}" style="{}"/>)svg", d, kFrontStyle));
    }

    void point(const Frame& frame, size_t i) {
        const ScatterPoint& p = plot_.points[i];
        const double x = frame.x(p.x), y = frame.y(p.y);
        taken_.push_back({x - 6, y - 6, x + 6, y + 6});
        if (p.error > 0 && std::isfinite(p.error)) {
            const double high = frame.y(p.y + p.error), low = frame.y(p.y - p.error);
            lines_.push_back({x - 4, high, x + 4, low});
            canvas_.add(fmt::format(
                R"svg(<path d="M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {1:.1f}h6M{3:.1f} {2:.1f}h6" style="stroke:var(--ink,#1b1b1a);fill:none"/>)svg",
                x, high, low, x - 3));
        }
        canvas_.add(fmt::format(
            R"svg(<circle cx="{:.1f}" cy="{:.1f}" r="4.5" style="fill:{}"><title>{}</title></circle>)svg", x,
            y, series_color(p.series), escape(describe(i))));
    }

    std::string describe(size_t i) const {
        const ScatterPoint& p = plot_.points[i];
        return fmt::format("{}: {}, {}", p.name, plot_.format_x(p.x), plot_.format_y(p.y));
    }

    // Returns the points whose labels have no room.
    std::vector<size_t> labels(const Frame& frame) {
        std::vector<size_t> left_over;
        for (const size_t i : drawn_) {
            const std::string name = shorten(plot_.points[i].name, 24);
            const auto place = free_place(frame, frame.x(plot_.points[i].x), frame.y(plot_.points[i].y),
                                          text_width(name, kFont));
            if (!place) {
                left_over.push_back(i);
                continue;
            }
            taken_.push_back(*place);
            canvas_.add(fmt::format(R"svg(<text x="{:.1f}" y="{:.1f}" font-size="{}">{}</text>)svg",
                                    place->left, place->bottom - 3, kFont, escape(name)));
        }
        return left_over;
    }

    std::optional<Box> free_place(const Frame& frame, double x, double y, double width) const {
        const auto place = free_place(frame, x, y, width, true);
        return place ? place : free_place(frame, x, y, width, false);
    }

    // Tries beside the point, above, below, and then further away; crosses lines only as a last resort.
    std::optional<Box> free_place(const Frame& frame, double x, double y, double width,
                                  bool off_lines) const {
        constexpr double h = kFont + 2;
        for (const double away : {8.0, 16.0, 26.0}) {
            const Box candidates[] = {{x + away, y - h / 2, x + away + width, y + h / 2},
                                      {x - away - width, y - h / 2, x - away, y + h / 2},
                                      {x - width / 2, y - away - h, x + width / 2, y - away},
                                      {x - width / 2, y + away, x + width / 2, y + away + h},
                                      {x + away, y - away - h / 2, x + away + width, y - away + h / 2},
                                      {x + away, y + away - h / 2, x + away + width, y + away + h / 2},
                                      {x - away - width, y - away - h / 2, x - away, y - away + h / 2},
                                      {x - away - width, y + away - h / 2, x - away, y + away + h / 2}};
            for (const Box& box : candidates) {
                const bool inside = box.left >= frame.left() + 2 && box.right <= Canvas::kWidth - 2 &&
                                    box.top >= frame.top() && box.bottom <= frame.bottom();
                const auto covered = [&](const Box& other) { return box.overlaps(other); };
                if (inside && std::none_of(taken_.begin(), taken_.end(), covered) &&
                    !(off_lines && std::any_of(lines_.begin(), lines_.end(), covered)))
                    return box;
            }
        }
        return std::nullopt;
    }

    static constexpr const char* kFrontStyle =
        "stroke:var(--muted,#55534e);stroke-width:1.4;stroke-dasharray:5 3;fill:none";

    const ScatterPlot& plot_;
    std::vector<size_t> drawn_, front_;
    std::vector<Box> taken_, lines_;
    Canvas canvas_;
};

}  // namespace

std::vector<size_t> pareto_front(const ScatterPlot& plot) {
    std::vector<size_t> order;
    for (size_t i = 0; i < plot.points.size(); ++i) {
        if (drawable(plot, plot.points[i])) order.push_back(i);
    }
    const auto worth = [&](size_t i) { return plot.small_is_good ? -plot.points[i].y : plot.points[i].y; };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return plot.points[a].x != plot.points[b].x ? plot.points[a].x < plot.points[b].x
                                                    : worth(a) > worth(b);
    });
    std::vector<size_t> front;
    for (const size_t i : order) {
        if (front.empty() || worth(i) > worth(front.back())) front.push_back(i);
    }
    return front;
}

std::string scatter_plot_svg(const ScatterPlot& plot) { return ScatterDrawing(plot).str(); }

}  // namespace refold
