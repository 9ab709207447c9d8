// Distance of a model's weights from the model it was made from.
#pragma once

#include <optional>
#include <vector>

#include "model/model.h"

namespace refold {

struct Reconstruction {
    std::vector<Slot> slots;  // weight matrices
    // [layer][slot]: |W' - W| / |W| in Frobenius norms of the materialized weights. NaN when a model lacks
    // the weight, the sizes differ, or W is 0.
    std::vector<std::vector<double>> errors;
    double total = 0;      // the same over all these weights; NaN when there are none
    size_t compared = 0;   // number of weights compared
    size_t different = 0;  // number of these that are not equal
    size_t missing = 0;    // number of the original's weights that cannot be compared

    // The column of this weight in `errors`, if it has one.
    std::optional<size_t> column(size_t layer, Slot slot) const;
};

// Compares layer by layer with one weight at a time in memory. Shows progress. Throws Error(input) for a
// model without weights or with another number of layers.
Reconstruction compare_weights(const Model& original, const Model& other);

}  // namespace refold
