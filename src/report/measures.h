// The rows of a comparison, shared by the table and the page.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "report/report.h"

namespace refold {

struct Measure {
    const char* name;
    const char* hint;  // what exactly is counted
    std::optional<double> (*value)(const Variant& variant);
    std::string (*format)(double value);
    bool relative;  // whether a change against the first variant means something
};

std::span<const Measure> measures();

// "-8.3 %", "x 3.4" for what grew tenfold or more; empty where the measure has none or either value is
// missing.
std::string change(const Measure& measure, const Variant& variant, const Variant& first);

// "134.52 M"
std::string format_parameters(double value);

}  // namespace refold
