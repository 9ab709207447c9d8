#include "report/measures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/text.h"

namespace refold {
namespace {

std::optional<double> real(const std::optional<uint64_t>& value) {
    if (!value) return std::nullopt;
    return static_cast<double>(*value);
}

std::string bytes(double value) { return format_bytes(static_cast<uint64_t>(std::max(value, 0.0))); }
std::string speed(double value) { return fmt::format("{:.1f} t/s", value); }
std::string times(double value) { return fmt::format("{:.2f} x", value); }
std::string percent(double value) { return fmt::format("{:.2f} %", 100 * value); }
std::string plain(double value) { return std::isfinite(value) ? fmt::format("{:.4f}", value) : "infinite"; }
std::string perplexity(double value) {
    return std::isfinite(value) ? fmt::format("{:.2f}", value) : "infinite";
}

std::string (*format_of(const std::string& metric, bool fraction))(double) {
    if (fraction) return percent;
    return metric.find("perplexity") == std::string::npos ? plain : perplexity;
}

const PerplexityFigure* find(const Variant& v, const PerplexityFigure& wanted) {
    const auto found = std::find_if(v.perplexities.begin(), v.perplexities.end(), [&](const auto& p) {
        return p.metric == wanted.metric && p.protocol == wanted.protocol;
    });
    return found == v.perplexities.end() ? nullptr : &*found;
}

const TaskFigure* find(const Variant& v, const TaskFigure& wanted) {
    const auto found = std::find_if(v.tasks.begin(), v.tasks.end(), [&](const auto& t) {
        return t.task == wanted.task && t.metric == wanted.metric && t.protocol == wanted.protocol;
    });
    return found == v.tasks.end() ? nullptr : &*found;
}

// The distinct items of all variants, in order of appearance.
template <typename Item>
std::vector<Item> distinct(const Comparison& c, std::vector<Item> Variant::*list) {
    std::vector<Item> out;
    Variant seen;
    for (const auto& variant : c.variants) {
        for (const auto& item : variant.*list) {
            if (find(seen, item) != nullptr) continue;
            (seen.*list).push_back(item);
            out.push_back(item);
        }
    }
    return out;
}

template <typename Item>
Quality quality_of(const Item& item, const std::string& name, bool small_is_good) {
    Quality q{name, item.protocol, small_is_good, {}, {}, {}};
    q.value = [item](const Variant& v) -> std::optional<double> {
        const Item* found = find(v, item);
        return found == nullptr ? std::nullopt : std::optional(found->value);
    };
    q.error = [item](const Variant& v) -> std::optional<double> {
        const Item* found = find(v, item);
        return found == nullptr ? std::nullopt : found->standard_error;
    };
    return q;
}

using SpeedOf = std::optional<SpeedFigure> Variant::*;

void add_speed(std::vector<Measure>& out, const std::string& name, const std::string& hint,
               SpeedOf speed_of) {
    out.push_back({name,
                   hint,
                   false,
                   Change::percent,
                   [=](const Variant& v) -> std::optional<double> {
                       if (!(v.*speed_of)) return std::nullopt;
                       return (v.*speed_of)->tokens_per_s;
                   },
                   {},
                   speed});
    out.push_back({"against llama.cpp",
                   "ratio to the baseline in the same run",
                   true,
                   Change::none,
                   [=](const Variant& v) -> std::optional<double> {
                       if (!(v.*speed_of)) return std::nullopt;
                       return (v.*speed_of)->ratio;
                   },
                   {},
                   times});
}

Measure bytes_row(const char* name, const char* hint, std::optional<uint64_t> Variant::*field) {
    return {name, hint, false, Change::percent, [field](const Variant& v) { return real(v.*field); },
            {},   bytes};
}

// The last value of this curve in the last run that has it.
std::optional<double> last_of(const Variant& v, const char* name) {
    std::optional<double> out;
    for (const auto& run : v.training) {
        for (const auto& curve : run.curves) {
            if (curve.name == name && !curve.values.empty()) out = curve.values.back();
        }
    }
    return out;
}

void add_training(std::vector<Measure>& out, const char* name, const char* hint, const char* curve) {
    out.push_back({name,
                   hint,
                   false,
                   Change::percent,
                   [curve](const Variant& v) { return last_of(v, curve); },
                   {},
                   plain});
}

}  // namespace

bool TaskFigure::fraction() const {
    constexpr std::array kFractions = {"acc", "exact_match", "em", "f1", "mcc", "label_probability"};
    return std::any_of(kFractions.begin(), kFractions.end(),
                       [&](const char* name) { return metric.starts_with(name); });
}

std::vector<Quality> perplexities(const Comparison& comparison) {
    std::vector<Quality> out;
    for (const auto& item : distinct(comparison, &Variant::perplexities)) {
        out.push_back(quality_of(item, item.metric, true));
        out.back().format = format_of(item.metric, false);
    }
    return out;
}

std::vector<Quality> task_metrics(const Comparison& comparison) {
    std::vector<Quality> out;
    for (const auto& item : distinct(comparison, &Variant::tasks)) {
        out.push_back(quality_of(item, item.task + ", " + item.metric, !item.higher_is_better));
        out.back().format = format_of(item.metric, item.fraction());
    }
    return out;
}

std::vector<Measure> measures(const Comparison& comparison) {
    std::vector<Measure> out;
    out.push_back({"parameters stored",
                   "elements of all stored tensors, shared ones once",
                   false,
                   Change::percent,
                   [](const Variant& v) { return real(v.parameters); },
                   {},
                   format_parameters});
    out.push_back({"beyond equal size",
                   "stored parameters more than those of the model with as large a part of its heads shared",
                   true,
                   Change::none,
                   [](const Variant& v) { return v.beyond_equal_size; },
                   {},
                   [](double v) { return (v < 0 ? "-" : "+") + format_parameters(std::abs(v)); }});
    out.push_back(bytes_row("file size", "", &Variant::file_bytes));
    out.push_back(bytes_row("weights in memory", "as the engine holds them, shared ones once",
                            &Variant::resident_weight_bytes));
    out.push_back(bytes_row("process memory", "resident set of a process that runs this variant alone",
                            &Variant::resident_set_bytes));
    out.push_back(bytes_row("KV cache per token", "", &Variant::kv_bytes_per_token));
    const auto scores = perplexities(comparison);
    for (const auto& q : scores) {
        const std::string hint = "lower is better" + (q.protocol.empty() ? "" : "; " + q.protocol);
        out.push_back({q.name, hint, false, Change::percent, q.value, {}, q.format});
        out.push_back({"standard error", "of the " + q.name, true, Change::none, q.error, {}, q.format});
    }
    for (const auto& q : task_metrics(comparison)) {
        const std::string hint = (q.small_is_good ? "lower is better" : "higher is better") +
                                 std::string(q.protocol.empty() ? "" : "; " + q.protocol);
        const bool fraction = q.format(0.5).ends_with('%');
        out.push_back(
            {q.name, hint, false, fraction ? Change::points : Change::percent, q.value, q.error, q.format});
    }
    add_training(out, "held-out loss", "nats per token, the last of training; lower is better",
                 "held_out_loss");
    add_training(out, "training loss", "nats per token, of the last step", "loss");
    add_speed(out, "prefill speed", "tokens of the prompt per second", &Variant::prefill);
    add_speed(out, "decode speed", "generated tokens per second", &Variant::decode);
    out.push_back({"error of weights",
                   "|W' - W| / |W| over all weight matrices, against the model it was made of",
                   false,
                   Change::none,
                   [](const Variant& v) -> std::optional<double> {
                       if (!v.reconstruction || v.reconstruction->compared == 0) return std::nullopt;
                       return v.reconstruction->total;
                   },
                   {},
                   [](double v) { return std::isfinite(v) ? fmt::format("{:.4f}", v) : std::string("-"); }});
    std::erase_if(out, [&](const Measure& measure) {
        return std::none_of(comparison.variants.begin(), comparison.variants.end(),
                            [&](const Variant& v) { return measure.value(v).has_value(); });
    });
    return out;
}

std::string value_text(const Measure& measure, const Variant& variant, const char* plus_minus) {
    const auto value = measure.value(variant);
    if (!value) return "-";
    std::string text = measure.format(*value);
    const auto error = measure.error ? measure.error(variant) : std::nullopt;
    if (!error || !std::isfinite(*error)) return text;
    const std::string spread = measure.format(*error);
    const bool unit = text.ends_with(" %") && spread.ends_with(" %");
    return (unit ? text.substr(0, text.size() - 2) : text) + plus_minus + spread;
}

std::string change(const Measure& measure, const Variant& variant, const Variant& first) {
    if (measure.change == Change::none || &variant == &first) return "";
    const auto now = measure.value(variant), before = measure.value(first);
    if (!now || !before || !std::isfinite(*now) || !std::isfinite(*before)) return "";
    if (measure.change == Change::points) {
        const double points = 100 * (*now - *before);
        return std::abs(points) < 0.005 ? "same" : fmt::format("{:+.2f} points", points);
    }
    if (!(*before > 0)) return "";
    const double ratio = *now / *before;
    if (ratio >= 10) return fmt::format("x {:.1f}", ratio);
    const double part = 100 * (ratio - 1);
    if (std::abs(part) < 0.05) return "same";
    return fmt::format("{:+.1f} %", part);
}

std::string processor_text(const Machine& machine) {
    if (machine.cpu.empty() || machine.threads == 0) return machine.cpu;
    return fmt::format("{}, {} thread{}", machine.cpu, machine.threads, machine.threads == 1 ? "" : "s");
}

std::string format_parameters(double value) {
    if (value >= 1e9) return fmt::format("{:.2f} B", value / 1e9);
    if (value >= 1e6) return fmt::format("{:.2f} M", value / 1e6);
    return format_count(static_cast<uint64_t>(std::max(value, 0.0)));
}

}  // namespace refold
