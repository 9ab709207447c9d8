// Watching and cancelling what takes long.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string_view>

namespace refold {

// Progress of the part that runs now. `total` is 0 when unknown; `unit` says what is counted ("tokens").
struct ProgressReport {
    std::string_view part;
    uint64_t done = 0, total = 0;
    std::string_view unit;
};

struct Control {
    // Called from time to time by the thread that runs the function.
    std::function<void(const ProgressReport&)> on_progress = {};
    // Cancels, from any thread: the function throws Error(interrupted) and leaves no output.
    std::stop_token stop = {};
};

}  // namespace refold
