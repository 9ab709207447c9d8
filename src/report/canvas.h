// The drawing surface of charts, with a common style for text, legends and axes. SVG units are CSS pixels at
// the width of a phone; pages stretch charts to the width of their column.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/axis.h"

namespace refold {

enum class Ink { plain, strong, muted, number, muted_number };

struct LegendEntry {
    std::string mark;  // SVG within 11 x 11 units above and right of the origin
    std::string name;
};

class Canvas {
public:
    static constexpr double kWidth = 352;

    // `anchor`: start, middle or end.
    void text(double x, double y, const char* anchor, Ink ink, std::string_view words);
    // Text that reads upwards, with its middle at (x, y).
    void vertical_text(double x, double y, Ink ink, std::string_view words);
    // Adds markup unchanged.
    void add(std::string_view markup) { body_ += markup; }
    void line(double x1, double y1, double x2, double y2, const char* color = "var(--grid,#dedbd4)");
    // Draws rows as wide as the chart from baseline `y` on. Returns the baseline of the last row.
    double legend(const std::vector<LegendEntry>& entries, double y);

    // The chart as an <svg> element with the accessible name `label`.
    std::string str(std::string_view label, double height) const;
    // Removes and returns everything drawn so far.
    std::string take() { return std::exchange(body_, {}); }

private:
    std::string body_;
};

// Markers for legends and series.
std::string square_mark(const std::string& color);
std::string disc_mark(const std::string& color);
// A strip of colors.
std::string strip(double x, double y, double width, const std::vector<std::string>& colors);

// The frame of charts with two axes: grid, tick labels and names of the axes.
class Frame {
public:
    // The frame and its axes fill the box from `top` with `height`, as wide as the chart.
    Frame(Axis x, Axis y, double top, double height);

    double x(double value) const;
    double y(double value) const;
    double left() const { return left_; }
    double right() const { return right_; }
    double top() const { return top_; }
    double bottom() const { return bottom_; }
    // Draws grid lines, tick labels and names. Returns the lowest y.
    double draw(Canvas& canvas, const std::string& x_name, const std::string& y_name) const;

private:
    Axis x_, y_;
    double left_, right_, top_, bottom_;
};

// Estimated width of a text in the charts' font.
double text_width(std::string_view text, double size = 12);

}  // namespace refold
