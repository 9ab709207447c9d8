// Leaving out the least important KV groups and FFN channels: what the pruning methods have in common.
#pragma once

#include <functional>
#include <vector>

#include "compress/method.h"

namespace refold {

// Importance of every KV group of a position, when `slots` are those of attention, or of every channel of its
// FFN. Slots that the position does not have do not count.
using Weigh =
    std::function<std::vector<double>(const Model& model, size_t position, const std::vector<Slot>& slots)>;

// Leaves out what `what`, `ratio`, `rank`, `layers` and `multiple` of the step's options say, with details
// and lines of the report. Without `weigh` the choice is a placeholder, evenly spread. `method` is who asks.
// Throws Error(unsupported) for weights without heads or channels, Error(input) for an importance that is not
// finite.
Model prune(const Model& model, Step& step, const char* method, const Weigh& weigh);

// `what`, `rank`, `layers` and `multiple`; `ratio` differs in its default.
std::vector<OptionSpec> pruning_options(const char* ratio, const char* what, const char* rank);

}  // namespace refold
