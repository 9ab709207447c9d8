// Runs this program with other arguments.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace refold::cli {

// Runs `refold WORDS... --json` and returns what it prints. Its standard error is ours. Throws Error(input)
// when it fails, and Error(interrupted) after a signal, when it has ended.
nlohmann::json run_refold(std::vector<std::string> words);

}  // namespace refold::cli
