// Writes the metrics of a training run as JSON lines and as TensorBoard event files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace refold {

struct StepMetrics {
    int64_t step = 0;  // optimizer steps done
    // "loss", "learning_rate", "gradient_norm", "tokens_per_s", "held_out_loss", parts of an objective, ...
    std::map<std::string, double> values;
};

class MetricsFiles {
public:
    // Opens FOLDER/metrics.jsonl, with lines {"step": 1, "loss": 2.5, ...} and null for NaN and infinity, and
    // FOLDER/events.out.tfevents.refold, creating the folder if needed. A resumed run continues after
    // `first_step` and removes later entries of the interrupted run; 0 starts both files anew. Throws
    // Error(io), Error(input) for a metrics.jsonl with other content.
    MetricsFiles(const std::string& folder, int64_t first_step);
    ~MetricsFiles();
    // Both files hold the metrics when it returns. A step may have several entries. Throws Error(io) when the
    // disk is full.
    void write(const StepMetrics& metrics);

private:
    struct Files;
    std::unique_ptr<Files> files_;
};

}  // namespace refold
