// Leaving out the least important KV groups and FFN channels, for the pruning methods.
#pragma once

#include <functional>
#include <vector>

#include "compress/method/method.h"

namespace refold {

// Importance of each KV group of a layer when `slots` are those of the attention (kQkvo), else of each
// channel of its FFN. Slots that the layer does not have do not count.
using ImportanceOf =
    std::function<std::vector<double>(const Model& model, size_t layer, const std::vector<Slot>& slots)>;

// Prunes as the options `what`, `ratio`, `rank`, `layers` and `multiple` say, and reports. Without
// `importance` the choice is a placeholder, evenly spread. `method` is named in errors: Error(unsupported)
// for weights without heads or channels, Error(input) for an importance that is not finite.
Model prune(const Model& model, Step& step, const char* method, const ImportanceOf& importance);

// The options of prune(), with the defaults that differ between methods.
std::vector<OptionSpec> pruning_options(const char* ratio, const char* what, const char* rank);

}  // namespace refold
