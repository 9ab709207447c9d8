// Divides a budget of parameters among low-rank terms.
// "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA", section 2.3.
#pragma once

#include <cstdint>
#include <vector>

namespace refold {

namespace relax {

// A residual matrix.
struct Spectrum {
    int64_t in = 0, out = 0;
    std::vector<double> values;  // singular values, descending
};
// The rank of each matrix, 0 for no LoRA. All factors together hold at most `parameters` numbers; directions
// with the largest (singular value)^2 per parameter come first.
std::vector<int64_t> ranks_for_budget(const std::vector<Spectrum>& spectra, int64_t parameters);

}  // namespace relax
}  // namespace refold
