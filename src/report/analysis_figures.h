// Figures of the results of `refold analyze`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "report/figure.h"

namespace refold {

// Draws the JSON of `refold analyze --json`: similarity of heads and modules by weights, singular values,
// similarity of softmax (UniAttn), of heads' attention maps (Figure 1 of DirectShare), and of modules' inputs
// and outputs. Skips parts that are missing or malformed.
std::vector<Figure> analysis_figures(const nlohmann::json& analysis);

}  // namespace refold
