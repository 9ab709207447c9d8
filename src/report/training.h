// Reads and draws curves of training runs.
#pragma once

#include <string>
#include <vector>

#include "report/figure.h"
#include "report/report.h"
#include "report/results.h"

namespace refold {

// Parses a metrics.jsonl (train/metrics.h), ignoring an incomplete last line. The variant is named after the
// file's folder: NAME.train/step-2 gives the run "step-2" of NAME. Throws Error(input) naming `path` and line
// for invalid JSON, lines without a step, and values that are not numbers.
RunResult parse_training(const std::string& text, const std::string& path);
// Throws Error(io) as well.
RunResult read_training(const std::string& path);

// Loss, held-out loss, learning rate, gradient norm, speed and all other metrics over steps. Curves with many
// steps are averaged over neighboring steps.
std::vector<Figure> training_figures(const Comparison& comparison);

}  // namespace refold
