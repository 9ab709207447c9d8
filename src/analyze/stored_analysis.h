// Caches analyses on disk, so that a repeated run only reads its results.
#pragma once

#include <string>

#include "analyze/analysis.h"
#include "calibrate/calibration.h"

namespace refold {

// Identifies the content of a model's files by their paths, sizes and times of change, without reading them.
// `path` is a file or a Hugging Face directory, `model` the model loaded from it.
std::string files_identity(const std::string& path, const Model& model);

// analyze() with a cache: reads each part from `folder` when it is there for the same files
// (the original's too where the part needs it), text and options, else computes and stores it. An empty
// `folder` disables the cache. `calibration` may be null when no part needs text; all its sequences are used.
// Of the processes of group() only the first gets all parts.
Analysis stored_analysis(const Model& model, const std::string& path, const Calibration* calibration,
                         const AnalysisOptions& options, const std::string& folder);

}  // namespace refold
