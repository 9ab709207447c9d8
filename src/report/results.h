// Reads back the results that refold's verbs print with --json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace refold {

// One result. `variant` has its model (name, path, file, hashes, as far as known) and the measurements.
struct RunResult {
    std::string label;  // file of the result
    Variant variant;
    // Preceding models: the original of `compress`, all but the last model of a report.
    std::vector<Variant> before;
    Machine machine;
    std::string version;
    std::vector<std::string> commands;
    std::vector<std::string> notes;  // from a report
};

// Parses the JSON of `compress`, `eval ppl`, `eval tasks` (or lm-evaluation-harness), `bench`, `analyze` or
// `report`, which it recognizes by content. Throws Error(input) naming `label` for invalid JSON, for any
// other content, and for a report with impossible values.
RunResult parse_run(const std::string& text, const std::string& label);

// The same from a file. Throws Error(io) as well.
RunResult read_run(const std::string& path);

}  // namespace refold
