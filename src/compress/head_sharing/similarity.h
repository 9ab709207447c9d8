// Dot products of many long vectors that lie in stored weights, streamed.
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

// A matrix of each vector, as blocks of rows one after the other. The matrices of all vectors have the same
// shape.
using MatrixOfEach = std::vector<std::vector<RowBlock>>;  // [vector]

struct MatchMemory {
    size_t panel = size_t{64} << 20;    // bytes of rows in float64; at least one row of each vector
    size_t produced = size_t{1} << 30;  // bytes of tensors that are computed, kept while one matrix is read
};

// Dot products of all pairs of vectors: the lower triangle, row major. A vector is its matrices in
// `matrices`, one after the other. Accumulated in float64 from the stored weights. Rows of all vectors are
// read together, so memory is the result and what MatchMemory allows. `title` is shown with the progress.
std::vector<double> gram_matrix(const Model& model, const std::vector<MatrixOfEach>& matrices,
                                const std::string& title, const MatchMemory& memory = {});

}  // namespace refold
