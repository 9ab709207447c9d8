// Calibration text named on the command line or in a recipe.
#pragma once

#include <string>

#include "calibrate/calibration.h"

namespace refold::cli {

// The file `text` (UTF-8) in tokens of the model at `model`. Throws Error(io), and as make_calibration().
Calibration load_calibration(const std::string& text, const std::string& model,
                             const CalibrationOptions& options);

}  // namespace refold::cli
