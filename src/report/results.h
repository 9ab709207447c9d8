// Results that refold's verbs print with --json, read back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace refold {

// What one result says. Which model it is about stands in `variant`: name, path, file, hashes, as far as it
// tells; and everything that was measured.
struct RunResult {
    std::string label;  // file it was read from
    Variant variant;
    // Further models, which stand in front: of compress the model as it came, of a report all but the last.
    std::vector<Variant> before;
    Machine machine;
    std::string version;
    std::vector<std::string> commands;
    std::vector<std::string> notes;  // of a report
};

// The JSON of `compress`, `eval ppl`, `eval tasks` (and of lm-evaluation-harness), `bench`, `analyze` or
// `report`, told apart by what it holds. Throws Error(input), naming `label`, for text that is not JSON or no
// such result, and for a report with values that none has.
RunResult parse_run(const std::string& text, const std::string& label);

// The same from a file. Throws Error(io) as well.
RunResult read_run(const std::string& path);

}  // namespace refold
