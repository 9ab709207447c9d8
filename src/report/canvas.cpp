#include "report/canvas.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/markup.h"

namespace refold {
namespace {

constexpr const char* style_of(Ink ink) {
    switch (ink) {
        case Ink::strong: return "font-weight:600";
        case Ink::muted: return "fill:var(--muted,#55534e)";
        case Ink::number: return "font-variant-numeric:tabular-nums";
        case Ink::muted_number: return "fill:var(--muted,#55534e);font-variant-numeric:tabular-nums";
        default: return "";
    }
}

}  // namespace

double text_width(std::string_view text, double size) {
    const auto columns = std::count_if(text.begin(), text.end(),
                                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    return 0.56 * size * static_cast<double>(columns);
}

void Canvas::text(double x, double y, const char* anchor, Ink ink, std::string_view words) {
    body_ += fmt::format(R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" style="{}">{}</text>)svg", x, y,
                         anchor, style_of(ink), escape(words));
}

void Canvas::vertical_text(double x, double y, Ink ink, std::string_view words) {
    body_ += fmt::format(
        R"svg(<text transform="translate({:.1f} {:.1f}) rotate(-90)" text-anchor="middle" style="{}">{}</text>)svg",
        x, y, style_of(ink), escape(words));
}

void Canvas::line(double x1, double y1, double x2, double y2, const char* color) {
    body_ += fmt::format(R"svg(<path d="M{:.1f} {:.1f}L{:.1f} {:.1f}" style="stroke:{};fill:none"/>)svg", x1,
                         y1, x2, y2, color);
}

double Canvas::legend(const std::vector<LegendEntry>& entries, double y) {
    double x = 0;
    for (const LegendEntry& entry : entries) {
        const std::string name = shorten(entry.name, 46);
        const double width = 30 + text_width(name);
        if (x > 0 && x + width > kWidth + 14) {
            x = 0;
            y += 18;
        }
        body_ += fmt::format(R"svg(<g transform="translate({:.1f} {:.1f})">{}</g>)svg", x, y, entry.mark);
        text(x + 16, y, "start", Ink::muted, name);
        x += width;
    }
    return y;
}

std::string Canvas::str(std::string_view label, double height) const {
    return fmt::format(
               R"svg(<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{}" viewBox="0 0 {} {:.0f}" )svg"
               R"svg(font-size="12" font-family="system-ui,sans-serif" style="fill:var(--ink,#1b1b1a)">)svg",
               escape(label), kWidth, height) +
           body_ + "</svg>";
}

std::string square_mark(const std::string& color) {
    return fmt::format(R"svg(<rect y="-10" width="11" height="11" rx="2" style="fill:{}"/>)svg", color);
}

std::string disc_mark(const std::string& color) {
    return fmt::format(R"svg(<circle cx="5.5" cy="-4" r="5" style="fill:{}"/>)svg", color);
}

std::string strip(double x, double y, double width, const std::vector<std::string>& colors) {
    std::string out;
    const double step = width / static_cast<double>(std::max<size_t>(colors.size(), 1));
    for (size_t i = 0; i < colors.size(); ++i)
        out +=
            fmt::format(R"svg(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="10" style="fill:{}"/>)svg",
                        x + step * static_cast<double>(i), y, step + 0.3, colors[i]);
    return out;
}

Frame::Frame(Axis x, Axis y, double top, double height) : x_(std::move(x)), y_(std::move(y)), top_(top) {
    double numbers = 0;
    for (const double tick : y_.ticks) numbers = std::max(numbers, text_width(tick_text(tick)));
    left_ = 1.15 * numbers + 22;  // digits are wider than the average letter
    right_ = Canvas::kWidth - 14;
    bottom_ = top + height - 36;
}

double Frame::x(double value) const {
    return left_ + std::clamp(x_.fraction(value), 0.0, 1.0) * (right_ - left_);
}

double Frame::y(double value) const {
    return bottom_ - std::clamp(y_.fraction(value), 0.0, 1.0) * (bottom_ - top_);
}

double Frame::draw(Canvas& canvas, const std::string& x_name, const std::string& y_name) const {
    for (const double tick : y_.ticks) {
        canvas.line(left_, y(tick), right_, y(tick));
        canvas.text(left_ - 5, y(tick) + 4, "end", Ink::muted_number, tick_text(tick));
    }
    double free_from = 0;
    for (const double tick : x_.ticks) {
        canvas.line(x(tick), top_, x(tick), bottom_);
        const std::string words = tick_text(tick);
        const double half = text_width(words) / 2;
        if (x(tick) - half < free_from) continue;
        canvas.text(std::min(x(tick), Canvas::kWidth - half), bottom_ + 15, "middle", Ink::muted_number,
                    words);
        free_from = x(tick) + half + 6;
    }
    const auto name_of = [](const std::string& name, const Axis& axis) {
        return axis.logarithmic ? name + ", logarithmic" : name;
    };
    canvas.text((left_ + right_) / 2, bottom_ + 32, "middle", Ink::muted, name_of(x_name, x_));
    canvas.vertical_text(11, (top_ + bottom_) / 2, Ink::muted, name_of(y_name, y_));
    return bottom_ + 36;
}

}  // namespace refold
