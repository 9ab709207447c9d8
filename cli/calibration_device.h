// --engine and --device of verbs that calibrate.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "calibrate/calibration_device.h"

namespace refold::cli {

void add_calibration_device(CLI::App& app, CalibrationDevice& where);

// The device that compression runs on now, for reports: keys engine and device, or a line where it is not the
// default.
void add_calibration_device(nlohmann::ordered_json& report);
std::string calibration_device_line();

}  // namespace refold::cli
