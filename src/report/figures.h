// The figures of a comparison.
#pragma once

#include <vector>

#include "report/figure.h"
#include "report/report.h"

namespace refold {

// Bars of size, memory, quality and speed per variant, and of tasks per task and variant.
std::vector<Figure> bar_figures(const Comparison& comparison);

// Quality against size, for every perplexity that at least two variants have, and for the mean of the
// accuracies that all variants with tasks have in common.
std::vector<Figure> quality_figures(const Comparison& comparison);

// The percentage of attention heads and of FFN matrices that each layer borrows from other layers (Figure 7
// of DirectShare).
std::vector<Figure> share_figures(const Comparison& comparison);

// Reconstruction error of every weight matrix, for each variant that has them. Hovering also shows the error
// of an SVD with as many parameters, if known.
std::vector<Figure> reconstruction_figures(const Comparison& comparison);

}  // namespace refold
