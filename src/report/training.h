// Curves of training runs.
#pragma once

#include <string>
#include <vector>

#include "report/figure.h"
#include "report/report.h"
#include "report/results.h"

namespace refold {

// Of metrics.jsonl (train/metrics.h); a last line that is cut off is left out. The variant is named after the
// file's folder, NAME.train/step-2 giving the run "step-2" of NAME. Throws Error(input) naming `path` and
// line for what is no JSON, for lines without a step and for values that are no numbers.
RunResult parse_training(const std::string& text, const std::string& path);
// Throws Error(io) as well.
RunResult read_training(const std::string& path);

// Loss, held-out loss, learning rate, gradient norm, speed and what else the runs tell, over steps. Curves of
// many steps are means over neighbours.
std::vector<Figure> training_figures(const Comparison& comparison);

}  // namespace refold
