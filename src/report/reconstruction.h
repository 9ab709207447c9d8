// How far the weights of a model are from those that it was made of.
#pragma once

#include <optional>
#include <vector>

#include "model/model.h"

namespace refold {

struct Reconstruction {
    std::vector<Slot> slots;  // weight matrices
    // [position][slot]: |W' - W| / |W|, Frobenius norms of the weights written out; NaN where either model
    // has no such weight, or one of another size, or W is 0.
    std::vector<std::vector<double>> errors;
    double total = 0;      // the same over all those weights; NaN when there are none
    size_t compared = 0;   // weights
    size_t different = 0;  // of them not equal
    size_t missing = 0;    // weights of the original that cannot be compared

    // Whether `errors` has a place for this weight, and in which column.
    std::optional<size_t> column(size_t position, Slot slot) const;
};

// Compares position by position, one weight at a time in memory. Shows progress. Throws Error(input) for a
// model without weights or with another number of positions.
Reconstruction compare_weights(const Model& original, const Model& other);

}  // namespace refold
