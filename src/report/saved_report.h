// Reads back the JSON that to_json() writes, so that reports can be combined without their models.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "report/results.h"

namespace refold {

// The key that identifies a report, and the version of its layout.
constexpr const char* kReportLayout = "report_layout";
constexpr int kLayout = 2;  // 1 said "position" for a layer

bool is_saved_report(const nlohmann::json& root);

// Missing and null values were not measured. Throws Error(input), naming `label` and the path of the value,
// for another layout, values of the wrong type and contradictory values.
RunResult parse_report(const nlohmann::json& root, const std::string& label);

}  // namespace refold
