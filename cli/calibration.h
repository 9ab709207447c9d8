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

// Sequences to look at, one for each record of the .jsonl or .json files `paths` (holds_records()), of at
// most options.length tokens, from the files in turn; as many as have options.tokens tokens together. All
// are in `fit`. Throws as for_records(), and Error(input) for no record.
Calibration load_samples(const std::vector<std::string>& paths, const std::string& model,
                         const CalibrationOptions& options);

}  // namespace refold::cli
