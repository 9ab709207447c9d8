// Analyses that were made before: a second run of the same is a look into the cache.
#pragma once

#include <string>

#include "analyze/analysis.h"
#include "calibrate/calibration.h"

namespace refold {

// Names the content of a model's files by their paths, sizes and times of change: nothing is read. `path` is
// a file or a Hugging Face directory, `model` what was loaded from it.
std::string files_identity(const std::string& path, const Model& model);

// analyse(), each part taken from `folder` where it was left there for the same files, text and options, and
// left there otherwise; an empty folder: always computed. `calibration` may be null when no part needs text;
// all its sequences are used. Of several processes (group()) only the first one gets all parts.
Analysis stored_analysis(const Model& model, const std::string& path, const Calibration* calibration,
                         const AnalysisOptions& options, const std::string& folder);

}  // namespace refold
