#include "report/heatmap.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/canvas.h"
#include "report/markup.h"

namespace refold {
namespace {

constexpr size_t kHoverCells = 1600;
constexpr double kNameSize = 11;

struct Range {
    double low, high;
};

Range range_of_colors(const Heatmap& map) {
    std::vector<double> all;
    for (const auto& row : map.values) all.insert(all.end(), row.begin(), row.end());
    const auto found = range_of(all);
    Range range{found ? found->first : 0, found ? found->second : 1};
    if (map.scale == Scale::diverging) {
        const double most = std::max(std::abs(range.low), std::abs(range.high));
        range = {-most, most};
    }
    if (map.low) range.low = *map.low;
    if (map.high) range.high = *map.high;
    if (!(range.high > range.low)) range.high = range.low + 1;
    return range;
}

// Averages blocks of `step` x `step` cells, ignoring NaN.
Heatmap averaged(const Heatmap& map, size_t step) {
    Heatmap out = map;
    out.values.clear();
    out.details.clear();
    const auto every = [&](const std::vector<std::string>& names) {
        std::vector<std::string> kept;
        for (size_t i = 0; i < names.size(); i += step) kept.push_back(names[i]);
        return kept;
    };
    out.rows = every(map.rows);
    out.columns = every(map.columns);
    for (size_t r = 0; r < map.values.size(); r += step) {
        std::vector<double> sums(out.columns.size()), counts(out.columns.size());
        for (size_t i = r; i < std::min(r + step, map.values.size()); ++i) {
            for (size_t c = 0; c < std::min(map.values[i].size(), step * sums.size()); ++c) {
                if (!std::isfinite(map.values[i][c])) continue;
                sums[c / step] += map.values[i][c];
                counts[c / step] += 1;
            }
        }
        for (size_t c = 0; c < sums.size(); ++c) sums[c] /= counts[c];  // 0 / 0 gives NaN: no cell
        out.values.push_back(std::move(sums));
    }
    return out;
}

class HeatmapDrawing {
public:
    explicit HeatmapDrawing(const Heatmap& map)
        : map_(map), range_(range_of_colors(map)), columns_(map.columns.size()), rows_(map.rows.size()) {
        double names = 0;
        for (const auto& name : map.rows) names = std::max(names, text_width(name, kNameSize));
        left_ = std::min(names, 110.0) + 24;
        const double room = Canvas::kWidth - left_ - 4;
        width_ = std::min(room / static_cast<double>(std::max<size_t>(columns_, 1)), 44.0);
        height_ = rows_ == columns_
                      ? width_
                      : std::clamp(420.0 / static_cast<double>(std::max<size_t>(rows_, 1)), 4.0, 14.0);
        double longest = 0;
        for (const auto& name : map.columns) longest = std::max(longest, text_width(name, kNameSize));
        // Names all columns if there are few, vertically if they do not fit, and only some columns otherwise.
        vertical_ = columns_ <= 16 && longest > width_ - 2;
        top_ = vertical_ ? std::min(longest, 90.0) + 26 : 36;
    }

    std::string str(const std::string& note) {
        names();
        cells();
        const double bottom = top_ + height_ * static_cast<double>(rows_);
        canvas_.text(left_ + width_ * static_cast<double>(columns_) / 2, 12, "middle", Ink::muted,
                     map_.x_axis);
        canvas_.vertical_text(11, std::max((top_ + bottom) / 2, top_), Ink::muted, map_.y_axis);
        double y = legend(bottom + 14);
        if (!note.empty()) canvas_.text(0, y += 16, "start", Ink::muted, note);
        return canvas_.str(map_.label, y + 8);
    }

private:
    double x_of(size_t column) const { return left_ + width_ * static_cast<double>(column); }
    double y_of(size_t row) const { return top_ + height_ * static_cast<double>(row); }
    double value(size_t row, size_t column) const {
        if (row >= map_.values.size() || column >= map_.values[row].size()) return std::nan("");
        return map_.values[row][column];
    }

    void name(double x, double y, const char* anchor, const std::string& words) {
        canvas_.add(fmt::format(
            R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}" style="fill:var(--muted,#55534e)">{}</text>)svg",
            x, y, anchor, kNameSize, escape(shorten(words, 18))));
    }

    // Draws as many names as fit.
    void names() {
        const auto row_step = static_cast<size_t>(std::ceil(13.0 / height_));
        for (size_t r = 0; r < rows_; r += nice(row_step))
            name(left_ - 5, y_of(r) + height_ / 2 + 4, "end", map_.rows[r]);
        double longest = 0;
        for (const auto& words : map_.columns) longest = std::max(longest, text_width(words, kNameSize));
        const auto column_step =
            vertical_ ? size_t{1} : nice(static_cast<size_t>(std::ceil((longest + 4) / width_)));
        for (size_t c = 0; c < columns_; c += column_step) {
            const double x = x_of(c) + width_ / 2;
            if (vertical_) {
                canvas_.add(fmt::format(
                    R"svg(<text transform="translate({:.1f} {:.1f}) rotate(-90)" font-size="{}" style="fill:var(--muted,#55534e)">{}</text>)svg",
                    x + 4, top_ - 5, kNameSize, escape(shorten(map_.columns[c], 14))));
            } else {
                name(x, top_ - 6, "middle", map_.columns[c]);
            }
        }
    }
    static size_t nice(size_t step) {
        for (const size_t round : {1, 2, 5, 10, 20, 25, 50, 100}) {
            if (step <= round) return round;
        }
        return step;
    }

    void cells() {
        std::array<std::string, kScaleLevels> levels;
        const bool hover = rows_ * columns_ <= kHoverCells;
        for (size_t r = 0; r < rows_; ++r) {
            for (size_t c = 0; c < columns_;) {
                const double own = value(r, c);
                if (!std::isfinite(own)) {
                    ++c;
                    continue;
                }
                const size_t level = scale_level(own, range_.low, range_.high);
                size_t end = c + 1;
                if (hover) {
                    levels[level] += fmt::format(R"svg(<path d="{}"><title>{}</title></path>)svg", box(r, c),
                                                 escape(describe(r, c)));
                } else {
                    while (end < columns_ && std::isfinite(value(r, end)) &&
                           scale_level(value(r, end), range_.low, range_.high) == level)
                        ++end;
                    // Coordinates in cells make a large picture a third of the size.
                    levels[level] += fmt::format("M{} {}h{}v1h-{}z", c, r, end - c, end - c);
                }
                c = end;
            }
        }
        canvas_.add(fmt::format(
            R"svg(<path d="M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z" style="stroke:var(--grid,#dedbd4);fill:none"/>)svg",
            left_ - 0.5, top_ - 0.5, width_ * static_cast<double>(columns_) + 1,
            height_ * static_cast<double>(rows_) + 1, width_ * static_cast<double>(columns_) + 1));
        for (size_t level = 0; level < kScaleLevels; ++level) {
            if (levels[level].empty()) continue;
            const std::string style = "fill:" + level_color(map_.scale, level);
            canvas_.add(
                hover
                    ? fmt::format(R"svg(<g style="{}">{}</g>)svg", style, levels[level])
                    : fmt::format(
                          R"svg(<path transform="translate({:.2f} {:.2f}) scale({:.4f} {:.4f})" d="{}" style="{};stroke:{};stroke-width:.1"/>)svg",
                          left_, top_, width_, height_, levels[level], style,
                          level_color(map_.scale, level)));
        }
    }

    // A cell, with a gap around it where cells are large.
    std::string box(size_t row, size_t column) const {
        const double w = width_ - (width_ > 5 ? 0.7 : 0), h = height_ - (height_ > 5 ? 0.7 : 0);
        return fmt::format("M{:.4g} {:.4g}h{:.3g}v{:.3g}h-{:.3g}z", x_of(column), y_of(row), w, h, w);
    }

    std::string describe(size_t row, size_t column) const {
        std::string text = fmt::format("{} {}, {} {}: {}", map_.y_axis, map_.rows[row], map_.x_axis,
                                       map_.columns[column], map_.format(value(row, column)));
        if (row < map_.details.size() && column < map_.details[row].size() &&
            !map_.details[row][column].empty())
            text += ", " + map_.details[row][column];
        return text;
    }

    double legend(double y) {
        std::vector<std::string> colors;
        for (size_t level = 0; level < kScaleLevels; ++level)
            colors.push_back(level_color(map_.scale, level));
        const double width = Canvas::kWidth - left_ - 24;
        canvas_.add(strip(left_, y, width, colors));
        y += 23;
        canvas_.text(left_, y, "start", Ink::muted_number, map_.format(range_.low));
        canvas_.text(left_ + width / 2, y, "middle", Ink::muted_number,
                     map_.format((range_.low + range_.high) / 2));
        canvas_.text(left_ + width, y, "end", Ink::muted_number, map_.format(range_.high));
        y += 17;
        bool missing = false;
        for (size_t r = 0; r < rows_; ++r)
            for (size_t c = 0; c < columns_; ++c) missing = missing || !std::isfinite(value(r, c));
        canvas_.text(left_ + width / 2, y, "middle", Ink::muted,
                     map_.unit + (missing ? "; empty: none" : ""));
        return y;
    }

    const Heatmap& map_;
    Range range_;
    size_t columns_, rows_;
    double left_ = 0, top_ = 0, width_ = 0, height_ = 0;
    bool vertical_ = false;
    Canvas canvas_;
};

}  // namespace

std::string heatmap_svg(const Heatmap& map) {
    const size_t side = std::max(map.rows.size(), map.columns.size());
    if (side <= kHeatmapCells) return HeatmapDrawing(map).str("");
    const size_t step = (side + kHeatmapCells - 1) / kHeatmapCells;
    return HeatmapDrawing(averaged(map, step))
        .str(fmt::format("Every cell is the mean of {0} x {0} values.", step));
}

}  // namespace refold
