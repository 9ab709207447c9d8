// `refold fit --decode-speed`: what was predicted, and what the file really does beside the original.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/fit_input.h"

namespace refold::cli {

// Measures the speeds of types on this machine into input.options, if --decode-speed is given.
void measure_speeds(const FitArguments& arguments, FitInput& input, const Calibration& calibration,
                    Work& work);

// The plan's predicted speed, relative to the model's. Null without --decode-speed.
nlohmann::ordered_json predicted_speed(const FitArguments& arguments, const FitInput& input,
                                       const FitPlan& plan);
// The same with the speeds of the file at `path` and of the model, measured in turn in this process as
// `refold bench` does.
nlohmann::ordered_json measured_speed(const FitArguments& arguments, const FitInput& input,
                                      const FitPlan& plan, const std::string& path);
// Of either, for people; empty for null.
std::string speed_line(const nlohmann::ordered_json& speed);

}  // namespace refold::cli
