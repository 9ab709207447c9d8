// Relaxed Recursive Transformers: a looped block, and low-rank differences of its own for every position.
// "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA", section 2.3.
#pragma once

#include <string>
#include <vector>

#include "compress/method.h"

namespace refold {

extern const Method kRelax;

namespace relax {

// One residual matrix, for the division of a parameter budget.
struct Spectrum {
    int64_t in = 0, out = 0;
    std::vector<double> values;  // singular values, descending
};
// Ranks whose factors hold at most `parameters` numbers together, taking the directions with the largest
// (singular value)^2 per parameter first; 0: no LoRA.
std::vector<int64_t> ranks_for_budget(const std::vector<Spectrum>& spectra, int64_t parameters);

}  // namespace relax
}  // namespace refold
