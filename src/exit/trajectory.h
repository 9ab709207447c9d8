// The loops after which the tokens of a text exited, as JSON lines. The first line is
//   {"format": "refold exits", "version": 1, "loops": 3, ...}
// with further members for the reader (rule, model, text). One {"exits": [3, 1, 2, ...]} per sequence
// follows.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace refold {

struct ExitTrajectory {
    int32_t loops = 0;
    nlohmann::ordered_json about = nlohmann::ordered_json::object();  // other members of the first line
    std::vector<std::vector<int32_t>> sequences;                      // 1-based loops
};

std::string to_json_lines(const ExitTrajectory& trajectory);
// Throws Error(input) naming the file `name` and the line.
ExitTrajectory parse_exit_trajectory(const std::string& text, const std::string& name);

}  // namespace refold
