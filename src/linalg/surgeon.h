// The optimal brain surgeon for a linear map: inputs are removed one after another where the map's outputs
// suffer least, while the inputs that stay make up for them. Hassibi and Stork, "Second order derivatives for
// network pruning: Optimal Brain Surgeon" (1992), equations 5 and 6; for rows of a map with a common Gram
// matrix and whole structures, "SlimGPT" (Ling et al. 2024), section 3.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refold {

// A map W [outputs x inputs], row major, with the Gram matrix of its inputs, sum of x x^T [inputs x inputs].
// The first parts * width inputs are divided into parts of neighboring inputs; inputs after these (a bias)
// stay.
struct SurgeonMap {
    std::span<const double> gram;
    std::span<const float> weights;
    int64_t inputs = 0, parts = 0, width = 1;
    double ridge = 0.01;  // times the mean of the Gram matrix's diagonal, added to the diagonal
};

struct Removals {
    std::vector<int64_t> parts;  // in the order in which they go
    // After as many removals: min over W' without these inputs of sum over rows of |W' x - W x|^2, plus the
    // ridge's part.
    std::vector<double> errors;
    std::vector<int64_t> inputs;  // that stay, ascending
    std::vector<float> weights;   // the W' of these inputs [outputs x inputs.size()]
};

// Removes as many parts as the last of `counts` (ascending), and returns what is left after each of them. Few
// parts are chosen at once, a 1/128 of all, so that the time is that of a few products of matrices. Throws
// Error(input) when the Gram matrix with its ridge is not positive definite.
std::vector<Removals> remove_parts(const SurgeonMap& map, std::span<const int64_t> counts);

// The same with parts chosen by magnitude, for comparison: the root mean square of an input times the norm of
// its column of W. The errors are sums of its squares, W is as it was.
std::vector<Removals> remove_small_parts(const SurgeonMap& map, std::span<const int64_t> counts);

}  // namespace refold
