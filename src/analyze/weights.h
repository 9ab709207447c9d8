// Analyses of weights alone: the similarity of heads and modules, and the decay of singular values.
#pragma once

#include <string>
#include <vector>

#include "analyze/matrix.h"
#include "compress/rewrite/units.h"
#include "model/model.h"

namespace refold {

// The same model with every layer weight as rows of stored tensors. Products of factors and heads
// concatenated along columns become float32 tensors that are computed when read. Equal expressions stay
// equal. `model` must outlive the result.
Model with_stored_weights(const Model& model);

struct HeadSimilarity {
    std::vector<Unit> units;  // KV groups of all layers that have queries and keys, in order
    SquareMatrix cosines;     // of their concatenated query and key weights (DirectShare, equation 3)
};
HeadSimilarity head_similarity(const Model& model);

// The candidates of DirectShare's Algorithm 1: every distinct stored unit, and the dot products of their
// query and key weights (lower triangle, row major).
struct HeadCandidates {
    std::vector<Unit> units;
    std::vector<double> gram;
};
HeadCandidates head_candidates(const Model& model);

// Cosines of whole modules, all their matrices concatenated [layers x layers]. Undefined where a layer lacks
// the module or the sizes differ.
SquareMatrix module_cosines(const Model& model, const std::vector<Slot>& slots);
inline const std::vector<Slot> kFfnMatrices = to_vector(slots_where(
    [](const SlotProperties& s) { return s.kind == SlotKind::matrix && s.module == SlotModule::ffn; }));

struct Spectrum {
    std::vector<size_t> layers;  // layers that have this weight
    Slot slot;
    SlotShape shape;
    std::vector<double> values;                     // all singular values, descending
    int64_t rank_50 = 0, rank_90 = 0, rank_99 = 0;  // smallest ranks with 50, 90, 99 % of the sum of squares
    double stable_rank = 0;                         // |W|_F^2 / |W|_2^2; undefined for a zero matrix
};
// The spectrum of every layer matrix; a matrix that several layers share occurs once.
std::vector<Spectrum> spectra(const Model& model);

}  // namespace refold
