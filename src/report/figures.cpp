#include "report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/axis.h"
#include "report/measures.h"

namespace refold {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

using Values = std::vector<std::optional<double>>;

std::string mib(double v) { return fmt::format("{:.1f} MiB", v); }
std::string per_cent(double v) { return fmt::format("{:.1f} %", v); }
std::string three_digits(double v) { return fmt::format("{:.3g}", v); }

template <typename Value>
Values column(const Comparison& c, Value&& value) {
    Values out;
    for (const auto& variant : c.variants) out.push_back(value(variant));
    return out;
}

Values bytes_column(const Comparison& c, std::optional<uint64_t> Variant::*field, double unit) {
    return column(c, [&](const Variant& v) -> std::optional<double> {
        if (!(v.*field)) return std::nullopt;
        return static_cast<double>(*(v.*field)) / unit;
    });
}

bool any(const Values& values) {
    return std::any_of(values.begin(), values.end(), [](const auto& v) { return v.has_value(); });
}

std::vector<double> known(const Values& values) {
    std::vector<double> out;
    for (const auto& value : values) {
        if (value) out.push_back(*value);
    }
    return out;
}

void add_bars(std::vector<Figure>& out, const Comparison& c, const std::string& title,
              const std::string& caption, BarChart chart) {
    std::erase_if(chart.series, [](const BarSeries& s) { return !any(s.values); });
    if (chart.series.empty()) return;
    for (const auto& variant : c.variants) chart.categories.push_back(variant.name);
    out.push_back({title, caption, std::move(chart)});
}

// The baseline's name if all variants have the same, else "baseline".
std::string baseline_name(const Comparison& c, std::optional<SpeedFigure> Variant::*speed) {
    std::string name;
    for (const auto& v : c.variants) {
        if (!(v.*speed) || !(v.*speed)->baseline_tokens_per_s) continue;
        if (!name.empty() && (v.*speed)->baseline != name) return "baseline";
        name = (v.*speed)->baseline;
    }
    return name;
}

void add_speed(std::vector<Figure>& out, const Comparison& c, const std::string& title,
               std::optional<SpeedFigure> Variant::*speed) {
    const Values own = column(c, [&](const Variant& v) -> std::optional<double> {
        if (!(v.*speed)) return std::nullopt;
        return (v.*speed)->tokens_per_s;
    });
    const Values other = column(c, [&](const Variant& v) -> std::optional<double> {
        if (!(v.*speed)) return std::nullopt;
        return (v.*speed)->baseline_tokens_per_s;
    });
    add_bars(out, c, title, "Higher is better; a variant and its baseline ran alternately.",
             {.label = "",
              .axis = "tokens per second",
              .categories = {},
              .series = {{"refold", own}, {baseline_name(c, speed), other}},
              .format = [](double v) { return fmt::format("{:.1f} t/s", v); }});
}

// Capitalizes the name of a perplexity; keeps the name of a task.
std::string titled(const Quality& q) {
    std::string title = q.name;
    if (title.find(',') == std::string::npos)
        title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
    return title;
}

std::string better(const Quality& q) {
    return (q.small_is_good ? "Lower is better" : "Higher is better") +
           (q.protocol.empty() ? "." : "; " + q.protocol + ".");
}

void add_quality(std::vector<Figure>& out, const Comparison& c, const Quality& q) {
    BarSeries series{q.name, column(c, q.value)};
    for (const auto& v : c.variants) series.errors.push_back(q.error(v).value_or(0.0));
    const bool logarithmic = spans_decades(known(series.values));
    const std::string title = titled(q);
    add_bars(
        out, c, title, better(q),
        {.label = "",
         .axis = q.name + " (no unit)",
         .categories = {},
         .series = {series},
         .format = [](double v) { return v < 1000 ? fmt::format("{:.2f}", v) : fmt::format("{:.0f}", v); },
         .logarithmic = logarithmic});
}

bool is_fraction(const Quality& q) { return q.format(0.5).ends_with('%'); }

// Accuracies of all tasks, with a bar per variant.
void add_tasks(std::vector<Figure>& out, const Comparison& c) {
    BarChart chart{.label = "", .axis = "per cent", .categories = {}, .series = {}, .format = per_cent};
    std::vector<Quality> fractions;
    for (const auto& q : task_metrics(c)) {
        if (is_fraction(q)) {
            fractions.push_back(q);
        } else {
            add_quality(out, c, q);
        }
    }
    if (fractions.empty()) return;
    for (const auto& q : fractions) chart.categories.push_back(q.name);
    for (const auto& v : c.variants) {
        BarSeries series{v.name, {}};
        for (const auto& q : fractions) {
            const auto value = q.value(v);
            series.values.push_back(value ? std::optional(100 * *value) : std::nullopt);
            series.errors.push_back(100 * q.error(v).value_or(0.0));
        }
        if (any(series.values)) chart.series.push_back(std::move(series));
    }
    std::string protocols;
    for (const auto& q : fractions) {
        if (!q.protocol.empty()) protocols += fmt::format(" {}: {}.", q.name, q.protocol);
    }
    out.push_back({"Tasks", "Higher is better." + protocols, std::move(chart)});
}

// The x axis of quality plots: file size or parameters, whichever more variants have.
struct SizeAxis {
    std::string name;
    std::function<std::optional<double>(const Variant&)> value;
    std::function<std::string(double)> format;
};

SizeAxis size_axis(const Comparison& c) {
    const auto count = [&](std::optional<uint64_t> Variant::*field) {
        return std::count_if(c.variants.begin(), c.variants.end(),
                             [&](const Variant& v) { return (v.*field).has_value(); });
    };
    if (count(&Variant::file_bytes) >= count(&Variant::parameters))
        return {"file size (MiB)",
                [](const Variant& v) -> std::optional<double> {
                    if (!v.file_bytes) return std::nullopt;
                    return static_cast<double>(*v.file_bytes) / kMiB;
                },
                mib};
    return {"parameters stored (million)",
            [](const Variant& v) -> std::optional<double> {
                if (!v.parameters) return std::nullopt;
                return static_cast<double>(*v.parameters) / 1e6;
            },
            [](double v) { return fmt::format("{:.2f} M", v); }};
}

void add_scatter(std::vector<Figure>& out, const Comparison& c, const SizeAxis& size, const Quality& q,
                 double unit, const std::string& unit_name) {
    ScatterPlot plot{.label = "",
                     .x_axis = size.name,
                     .y_axis = q.name + unit_name,
                     .points = {},
                     .format_x = size.format,
                     .format_y = [unit, format = q.format](double v) { return format(v / unit); },
                     .small_is_good = q.small_is_good};
    std::vector<double> values;
    for (const auto& v : c.variants) {
        const auto x = size.value(v), y = q.value(v);
        if (!x || !y || !std::isfinite(*y)) continue;
        plot.points.push_back({v.name, *x, *y * unit, q.error(v).value_or(0.0) * unit});
        values.push_back(*y);
    }
    if (plot.points.size() < 2) return;
    plot.logarithmic = unit_name.empty() && spans_decades(values);
    const std::string title = titled(q) + " against size";
    out.push_back({title, better(q) + " Further left is smaller.", std::move(plot)});
}

// The mean of the accuracies that all variants with tasks have in common.
std::optional<Quality> mean_accuracy(const Comparison& c) {
    std::vector<Quality> common;
    std::vector<std::string> names;
    for (const auto& q : task_metrics(c)) {
        const bool everywhere = std::all_of(c.variants.begin(), c.variants.end(), [&](const Variant& v) {
            return v.tasks.empty() || q.value(v).has_value();
        });
        if (!is_fraction(q) || !everywhere) continue;
        common.push_back(q);
        names.push_back(q.name);
    }
    if (common.size() < 2) return std::nullopt;
    Quality mean = common.front();
    mean.name = "mean accuracy";
    mean.protocol = fmt::format("mean of {} metrics: {}", names.size(), fmt::join(names, "; "));
    mean.small_is_good = false;
    mean.value = [common](const Variant& v) -> std::optional<double> {
        double sum = 0;
        for (const auto& q : common) {
            const auto value = q.value(v);
            if (!value) return std::nullopt;
            sum += *value;
        }
        return sum / static_cast<double>(common.size());
    };
    mean.error = [](const Variant&) -> std::optional<double> { return std::nullopt; };
    return mean;
}

std::vector<double> counting(size_t n) {
    std::vector<double> out(n);
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<double>(i);
    return out;
}

void add_shares(std::vector<Figure>& out, const Comparison& c, const char* title, const char* caption,
                bool (*wanted)(Slot)) {
    LinePlot plot{.label = "",
                  .x_axis = "layer",
                  .y_axis = "borrowed (per cent)",
                  .lines = {},
                  .format = per_cent,
                  .from_zero = true};
    for (const auto& v : c.variants) {
        if (!v.topology) continue;
        auto shares = borrowed_parts(*v.topology, wanted);
        for (double& share : shares) share *= 100;
        if (std::any_of(shares.begin(), shares.end(), [](double share) { return share > 0; }))
            plot.lines.push_back({v.name, counting(shares.size()), shares});
    }
    if (!plot.lines.empty()) out.push_back({title, caption, std::move(plot)});
}

}  // namespace

std::vector<Figure> bar_figures(const Comparison& c) {
    std::vector<Figure> out;
    add_bars(out, c, "Parameters stored", "Shared weights count once.",
             {.label = "",
              .axis = "million parameters",
              .categories = {},
              .series = {{"parameters", bytes_column(c, &Variant::parameters, 1e6)}},
              .format = [](double v) { return fmt::format("{:.4g} M", v); }});
    add_bars(out, c, "File size", "On disk.",
             {.label = "",
              .axis = "MiB (1,048,576 bytes)",
              .categories = {},
              .series = {{"file", bytes_column(c, &Variant::file_bytes, kMiB)}},
              .format = mib});
    add_bars(out, c, "Memory", "The process also holds KV cache, activations and vocabulary.",
             {.label = "",
              .axis = "MiB (1,048,576 bytes)",
              .categories = {},
              .series = {{"weights", bytes_column(c, &Variant::resident_weight_bytes, kMiB)},
                         {"whole process", bytes_column(c, &Variant::resident_set_bytes, kMiB)}},
              .format = mib});
    for (const auto& q : perplexities(c)) add_quality(out, c, q);
    add_tasks(out, c);
    add_speed(out, c, "Decode speed", &Variant::decode);
    add_speed(out, c, "Prefill speed", &Variant::prefill);
    return out;
}

std::vector<Figure> quality_figures(const Comparison& c) {
    std::vector<Figure> out;
    const SizeAxis size = size_axis(c);
    for (const auto& q : perplexities(c)) add_scatter(out, c, size, q, 1, "");
    if (const auto mean = mean_accuracy(c)) add_scatter(out, c, size, *mean, 100, " (per cent)");
    return out;
}

std::vector<Figure> share_figures(const Comparison& c) {
    std::vector<Figure> out;
    add_shares(out, c, "Shared attention per layer",
               "Part of the heads of Q, K, V and O whose weights belong to another layer.",
               consists_of_heads);
    add_shares(out, c, "Shared FFN per layer", "Part of the FFN's matrices that belong to another layer.",
               belongs_to_ffn);
    return out;
}

std::vector<Figure> reconstruction_figures(const Comparison& c) {
    std::vector<Figure> out;
    // All variants share one color scale.
    double largest = 0;
    for (const auto& v : c.variants) {
        for (const auto& row :
             v.reconstruction ? v.reconstruction->errors : std::vector<std::vector<double>>{}) {
            const auto range = range_of(row);
            if (range) largest = std::max(largest, range->second);
        }
    }
    for (const auto& v : c.variants) {
        if (!v.reconstruction || v.reconstruction->different == 0) continue;
        const Reconstruction& r = *v.reconstruction;
        Heatmap map{.label = "",
                    .x_axis = "weight matrix",
                    .y_axis = "layer",
                    .columns = {},
                    .rows = {},
                    .values = r.errors,
                    .unit = "relative error |W' - W| / |W| (no unit)",
                    .format = three_digits,
                    .low = 0.0,
                    .high = largest};
        for (const Slot slot : r.slots) map.columns.emplace_back(slot_name(slot));
        for (size_t p = 0; p < r.errors.size(); ++p) map.rows.push_back(std::to_string(p));
        if (!v.svd_errors.empty())
            map.details.assign(r.errors.size(), std::vector<std::string>(r.slots.size()));
        for (const SvdError& svd : v.svd_errors) {
            if (const auto column = r.column(svd.layer, svd.slot))
                map.details[svd.layer][*column] =
                    fmt::format("SVD with as many numbers (rank {}): {:.3g}", svd.rank, svd.error);
        }
        out.push_back(
            {v.name,
             fmt::format("{} of {} weight matrices differ from the original; over all of them the "
                         "relative error is {:.4f}.{}",
                         r.different, r.compared, r.total,
                         r.missing == 0 ? "" : fmt::format(" {} are gone or have another size.", r.missing)),
             std::move(map)});
    }
    return out;
}

}  // namespace refold
