// What to_json() of a comparison writes, read back: reports can be put together without their models.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "report/results.h"

namespace refold {

// The key that tells a report from other JSON, and the number of its layout.
constexpr const char* kReportLayout = "report_layout";
constexpr int kLayout = 1;

bool is_saved_report(const nlohmann::json& root);

// What is absent or null was not measured. Throws Error(input), naming `label` and the place of the value,
// for another layout, values of the wrong type and values that contradict each other.
RunResult parse_report(const nlohmann::json& root, const std::string& label);

}  // namespace refold
