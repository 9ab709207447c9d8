// The metric that relates weights to attention maps: "Head-wise Shareable Attention for Large Language
// Models", equation 6 and appendix B, as |A n B| / K.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "analyze/weights.h"

namespace refold {

// A: the K head pairs that DirectShare selects by weights: for every head its most similar one of an earlier
// layer, and of these pairs the K largest. B: the same by attention maps. Heads are KV groups under GQA.
struct Degree {
    size_t k = 0, candidates = 0;  // heads that have an earlier one to match
    // By sample of the text; empty where there is no pair to choose.
    std::vector<double> pairs;  // part of A that is in B, later and earlier head alike
    std::vector<double> heads;  // part of A's later heads that are B's, whatever their partner
};

// `maps`: by sample, cosines of the candidates' maps. K = ratio x candidates.units (rounded down, at least
// 1).
Degree degree(const Model& model, const HeadCandidates& candidates, const std::vector<SquareMatrix>& maps,
              double ratio);

// `count` random samples of half of `sequences` (at least one), the same in every run.
std::vector<std::set<size_t>> random_samples(size_t sequences, int count, uint64_t seed = 0);

}  // namespace refold
