// Similarity of the attention maps (softmax activations) of layers and heads on a text.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "analyze/statistics.h"
#include "compress/rewrite/units.h"
#include "model/tap.h"

namespace refold {

// Means over sequences. A layer that uses another layer's probabilities has the same map.
struct MapSimilarity {
    // [layers x layers] cosines of the probabilities of one sequence, over all heads and tokens as one vector
    // (UniAttn, section 3.2; DirectShare, equation 1). Undefined for a layer without attention and for layers
    // with different numbers of heads.
    SquareMatrix layers;
    SquareMatrix layer_deviations;  // standard deviation over sequences
    // The same for each layer's mean map over its heads.
    SquareMatrix layers_of_mean_maps;
    std::vector<Unit> heads;  // query heads of all layers that have maps, in order
    SquareMatrix head_cosines;
    int64_t sequences = 0;
};

// Collects maps step by step. Keeps one step's maps and the dot products of all heads.
class AttentionMaps {
public:
    // `units`: KV groups to compare within each of `samples`, which are sets of sequences (numbered from 0).
    // The map of a group is the maps of its query heads as one vector.
    AttentionMaps(const Model& model, std::vector<Unit> units, std::vector<std::set<size_t>> samples);

    // The taps that an observer must pass to see().
    std::set<std::pair<size_t, Tap>> taps() const;
    // Takes one layer's probabilities of a step. Layers must come in the same order in every step.
    void see(const Tapped& seen);
    void end_step();
    // Throws Error(input) when no layer has probabilities.
    void end_sequence();
    // Another process runs the next sequence.
    void skip_sequence() { ++sequences_; }
    // Call after the text: combines the maps of all processes of group(), each of which must have run a
    // sequence.
    void merge_over_processes();

    MapSimilarity similarity() const;
    // Per sample, mean cosines over its sequences [units x units]; undefined for units without maps.
    std::vector<SquareMatrix> sample_cosines() const;

private:
    struct Rows {  // a range of rows of the Gram matrix
        size_t first = 0, count = 0;
    };
    size_t owner(size_t layer) const;
    const Rows* rows_of(size_t layer) const;
    double layer_cosine(const Rows& a, const Rows& b, bool of_means) const;
    SquareMatrix unit_cosines() const;

    const Model& model_;
    std::vector<Unit> units_;
    std::vector<std::set<size_t>> samples_;

    std::map<size_t, Rows> rows_;  // by layer with probabilities
    size_t heads_ = 0;
    std::vector<float> step_;  // [head][probabilities of this step's tokens]
    DotProducts gram_{0};

    size_t sequences_ = 0;
    std::vector<std::vector<RunningMean>> layers_, mean_maps_;  // lower triangles, by row of rows_
    SquareMatrix head_sums_;
    std::vector<SquareMatrix> sample_sums_;
    std::vector<size_t> sample_counts_;
};

}  // namespace refold
