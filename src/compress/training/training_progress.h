// Training as lines of progress.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/progress.h"
#include "train/metrics.h"
#include "train/options.h"

namespace refold {

// Shows a run as one line: for TrainRequest::report.
class TrainingProgress {
public:
    explicit TrainingProgress(const TrainOptions& options) : options_(options) {}

    void operator()(const StepMetrics& metrics);
    void finish();

private:
    const TrainOptions& options_;
    std::optional<Progress> progress_;
    std::string held_out_;
};

}  // namespace refold
