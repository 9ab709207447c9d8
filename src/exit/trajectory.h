// After which loops the tokens of texts exited, as a file: JSON lines, the first
//   {"format": "refold exits", "version": 1, "loops": 3, ...}
// (what else it says is for the reader: rule, model, text), then one {"exits": [3, 1, 2, ...]} per sequence.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace refold {

struct ExitTrajectory {
    int32_t loops = 0;
    nlohmann::ordered_json about = nlohmann::ordered_json::object();  // the first line's other members
    std::vector<std::vector<int32_t>> sequences;                      // 1-based loops
};

std::string to_json_lines(const ExitTrajectory& trajectory);
// `name` is the file, for errors. Throws Error(input) naming the line.
ExitTrajectory parse_exit_trajectory(const std::string& text, const std::string& name);

}  // namespace refold
