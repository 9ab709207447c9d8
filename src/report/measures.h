// The rows of a comparison, shared by the tables and the page.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace refold {

enum class Change { none, percent, points };  // how the change from the first variant is printed

struct Measure {
    std::string name;
    std::string hint;   // explains what is counted
    bool part = false;  // belongs to the row above
    Change change = Change::none;
    std::function<std::optional<double>(const Variant&)> value;
    std::function<std::optional<double>(const Variant&)> error{};  // standard error, if any
    std::function<std::string(double)> format;
};

// The measures that at least one variant has.
std::vector<Measure> measures(const Comparison& comparison);

// "134.52 M", "45.2 ± 0.5 %"; "-" when the variant has no value.
std::string value_text(const Measure& measure, const Variant& variant, const char* plus_minus = " ± ");

// "-8.3 %", "x 12.4" for values that grew tenfold or more, "+1.2 points"; empty when the measure has no
// change or a value is missing.
std::string change(const Measure& measure, const Variant& variant, const Variant& first);

// A measure of quality under one protocol, for plots.
struct Quality {
    std::string name, protocol;
    bool small_is_good = true;
    std::function<std::optional<double>(const Variant&)> value, error;
    std::function<std::string(double)> format;
};
std::vector<Quality> perplexities(const Comparison& comparison);
std::vector<Quality> task_metrics(const Comparison& comparison);

// "A processor, 2 threads", or the known part of it.
std::string processor_text(const Machine& machine);

// "134.52 M"
std::string format_parameters(double value);

}  // namespace refold
