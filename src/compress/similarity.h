// Dot products of many long vectors that are parts of stored weights, streamed.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

// Rows [first, first + count) of a stored tensor.
struct RowBlock {
    std::string tensor;
    int64_t first = 0, count = 0;
};

// One matrix of every vector, as blocks of rows below each other. All vectors have as many rows, as wide.
using MatrixOfEach = std::vector<std::vector<RowBlock>>;  // [vector]

struct MatchMemory {
    size_t panel = size_t{64} << 20;    // bytes of rows in float64; at least one row of every vector
    size_t produced = size_t{1} << 30;  // bytes of tensors that are not mapped, kept while one matrix is read
};

// Dot products of all vectors, lower triangle, row major: a vector is its part of `matrices`, one after the
// other. Accumulated in float64 from the stored weights; rows of all vectors are read together, so memory is
// the result and what MatchMemory allows. `title` is what progress says.
std::vector<double> gram_matrix(const Model& model, const std::vector<MatrixOfEach>& matrices,
                                const std::string& title, const MatchMemory& memory = {});

}  // namespace refold
