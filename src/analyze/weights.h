// What weights alone tell: which heads and modules resemble each other, and how fast singular values fall.
#pragma once

#include <string>
#include <vector>

#include "analyze/matrix.h"
#include "compress/units.h"
#include "model/model.h"

namespace refold {

// A model whose position weights are all stored, as rows of tensors: products of factors, and heads that are
// put together along columns, become float32 tensors that are computed when they are read. Equal expressions
// stay equal. `model` must outlive it.
Model with_stored_weights(const Model& model);

struct HeadSimilarity {
    std::vector<Unit> units;  // KV groups of all positions that have queries and keys, in order
    SquareMatrix cosines;     // of their query and key weights, concatenated (DirectShare, equation 3)
};
HeadSimilarity head_similarity(const Model& model);

// What DirectShare's Algorithm 1 would choose among: every distinct stored unit, and the dot products of
// their query and key weights (lower triangle, row major).
struct HeadCandidates {
    std::vector<Unit> units;
    std::vector<double> gram;
};
HeadCandidates head_candidates(const Model& model);

// Cosines of whole modules, all their matrices concatenated: positions x positions; undefined where a
// position lacks the module or has it in another size.
SquareMatrix module_cosines(const Model& model, const std::vector<Slot>& slots);
inline const std::vector<Slot> kFfnMatrices = {Slot::ffn_gate, Slot::ffn_up, Slot::ffn_down};

struct Spectrum {
    std::vector<size_t> positions;  // that have this weight
    Slot slot;
    SlotShape shape;
    std::vector<double> values;                     // all singular values, descending
    int64_t rank_50 = 0, rank_90 = 0, rank_99 = 0;  // smallest ranks that hold so much of the sum of squares
    double stable_rank = 0;                         // |W|_F^2 / |W|_2^2; undefined for zeros
};
// Of every matrix of every position; one that several positions have in common once.
std::vector<Spectrum> spectra(const Model& model);

}  // namespace refold
