// How well weights predict the similarity of attention maps: |A n B| / K of "Head-wise Shareable Attention
// for Large Language Models", equation 6 and appendix B.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "analyze/weights.h"

namespace refold {

// A are the K head pairs that DirectShare selects by weights: it pairs every head with the most similar head
// of an earlier layer and takes the K most similar pairs. B are the pairs selected in the same way by
// attention maps. With GQA, a head is a KV group.
struct Degree {
    size_t k = 0;
    size_t candidates = 0;  // heads with an earlier head to match
    // One value per sample of the text; empty when no pair exists.
    std::vector<double> pairs;  // fraction of A's pairs that are in B
    std::vector<double> heads;  // fraction of A's later heads that are later heads of B, with any partner
};

// `maps`: per sample, cosines of the candidates' maps. K = ratio x candidates.units, rounded down, at least
// 1.
Degree degree(const Model& model, const HeadCandidates& candidates, const std::vector<SquareMatrix>& maps,
              double ratio);

// `count` random samples of `size` sequences (0: half of them, at least one; at most all), the same in every
// run. The paper takes five of 100 each.
std::vector<std::set<size_t>> random_samples(size_t sequences, int count, size_t size = 0);

}  // namespace refold
