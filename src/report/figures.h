// The figures of a comparison.
#pragma once

#include <vector>

#include "report/figure.h"
#include "report/report.h"

namespace refold {

// Size, memory, quality and speed as bars, one per variant; tasks as bars, one per task and variant.
std::vector<Figure> bar_figures(const Comparison& comparison);

// Quality against size, for every perplexity that at least two variants have and for the mean of the tasks'
// accuracies that they have in common.
std::vector<Figure> quality_figures(const Comparison& comparison);

// Per layer, how much of the attention's heads and of the FFN's matrices is borrowed from other layers
// (Figure 7 of DirectShare).
std::vector<Figure> share_figures(const Comparison& comparison);

// Reconstruction error of every weight matrix, for each variant that has some; hovering also tells the error
// of an SVD that holds as many numbers, where it is known.
std::vector<Figure> reconstruction_figures(const Comparison& comparison);

}  // namespace refold
