// What a run tells about itself, as JSON lines and TensorBoard event files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace refold {

struct StepMetrics {
    int64_t step = 0;  // after so many steps of the optimiser
    // "loss", "learning_rate", "gradient_norm", "tokens_per_s", "held_out_loss", an objective's own parts,
    // ...
    std::map<std::string, double> values;
};

class MetricsFiles {
public:
    // FOLDER/metrics.jsonl, {"step": 1, "loss": 2.5, ...} with null for what is no number, and
    // FOLDER/events.out.tfevents.refold; the folder is made if it is not there. A resumed run goes on behind
    // `first_step`, what an interrupted one wrote after it is taken out; with 0 both begin anew. Throws
    // Error(io), Error(input) for a metrics.jsonl that holds something else.
    MetricsFiles(const std::string& folder, int64_t first_step);
    ~MetricsFiles();
    // Both files are complete up to this step when it returns; a step may have several. Throws Error(io) when
    // the disk is full.
    void write(const StepMetrics& metrics);

private:
    struct Files;
    std::unique_ptr<Files> files_;
};

}  // namespace refold
