#include "report/measures.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "core/text.h"

namespace refold {
namespace {

std::optional<double> real(std::optional<uint64_t> value) {
    if (!value) return std::nullopt;
    return static_cast<double>(*value);
}

std::string bytes(double value) { return format_bytes(static_cast<uint64_t>(value)); }
std::string speed(double value) { return fmt::format("{:.1f} t/s", value); }
std::string times(double value) { return fmt::format("{:.2f} x", value); }
std::string perplexity(double value) {
    return std::isfinite(value) ? fmt::format("{:.2f}", value) : "infinite";
}

constexpr std::array kMeasures = {
    Measure{"parameters stored", "elements of all stored tensors, shared ones once",
            [](const Variant& v) { return real(v.parameters); }, format_parameters, true},
    Measure{"file size", "", [](const Variant& v) { return real(v.file_bytes); }, bytes, true},
    Measure{"weights in memory", "as the engine holds them, shared ones once",
            [](const Variant& v) { return real(v.resident_weight_bytes); }, bytes, true},
    Measure{"process memory", "resident set of a process that runs this variant alone",
            [](const Variant& v) { return real(v.resident_set_bytes); }, bytes, true},
    Measure{"KV cache per token", "", [](const Variant& v) { return real(v.kv_bytes_per_token); }, bytes,
            true},
    Measure{"perplexity", "lower is better",
            [](const Variant& v) { return v.perplexity ? std::optional(v.perplexity->value) : std::nullopt; },
            perplexity, true},
    Measure{"  standard error", "of the perplexity",
            [](const Variant& v) {
                return v.perplexity ? std::optional(v.perplexity->standard_error) : std::nullopt;
            },
            perplexity, false},
    Measure{
        "prefill speed", "tokens of the prompt per second",
        [](const Variant& v) { return v.prefill ? std::optional(v.prefill->tokens_per_s) : std::nullopt; },
        speed, true},
    Measure{"  against llama.cpp", "ratio to stock llama.cpp in the same run",
            [](const Variant& v) { return v.prefill ? std::optional(v.prefill->ratio) : std::nullopt; },
            times, false},
    Measure{"decode speed", "generated tokens per second",
            [](const Variant& v) { return v.decode ? std::optional(v.decode->tokens_per_s) : std::nullopt; },
            speed, true},
    Measure{"  against llama.cpp", "ratio to stock llama.cpp in the same run",
            [](const Variant& v) { return v.decode ? std::optional(v.decode->ratio) : std::nullopt; }, times,
            false},
};

}  // namespace

std::span<const Measure> measures() { return kMeasures; }

std::string change(const Measure& measure, const Variant& variant, const Variant& first) {
    const auto now = measure.value(variant), before = measure.value(first);
    if (!measure.relative || &variant == &first || !now || !before || !(*before > 0) || !std::isfinite(*now))
        return "";
    const double ratio = *now / *before;
    if (ratio >= 10) return fmt::format("x {:.1f}", ratio);
    const double percent = 100 * (ratio - 1);
    if (std::abs(percent) < 0.05) return "same";
    return fmt::format("{:+.1f} %", percent);
}

std::string format_parameters(double value) {
    if (value >= 1e9) return fmt::format("{:.2f} B", value / 1e9);
    if (value >= 1e6) return fmt::format("{:.2f} M", value / 1e6);
    return format_count(static_cast<uint64_t>(value));
}

}  // namespace refold
