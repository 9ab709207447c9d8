// Calibration text named on the command line or in a recipe.
#pragma once

#include <string>
#include <vector>

#include "calibrate/calibration.h"

namespace refold::cli {

// Reads the files `texts` (UTF-8) and tokenizes them for the model at path `model`. Throws Error(io), and as
// make_calibration().
Calibration load_calibration(const std::vector<std::string>& texts, const std::string& model,
                             const CalibrationOptions& options);

}  // namespace refold::cli
