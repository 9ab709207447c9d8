// How much attention maps (softmax activations) of layers and heads resemble each other on a text.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "analyze/statistics.h"
#include "compress/units.h"
#include "model/tap.h"

namespace refold {

// Means over sequences. A position that uses another one's probabilities has that one's map.
struct MapSimilarity {
    // Positions x positions, of the probabilities of one sequence, all heads and tokens as one vector
    // (UniAttn, section 3.2; DirectShare, equation 1): undefined for positions without attention and of
    // different numbers of heads.
    SquareMatrix layers;
    SquareMatrix layer_deviations;  // standard deviation over sequences
    // The same of the layer's mean map over its heads.
    SquareMatrix layers_of_mean_maps;
    std::vector<Unit> heads;  // query heads of all positions that have maps, in order
    SquareMatrix head_cosines;
    int64_t sequences = 0;
};

// Collects maps step by step: what is kept is one step's maps and the dot products of all heads.
class AttentionMaps {
public:
    // `units`: KV groups whose maps are compared for every one of `samples`, each the sequences (counted from
    // 0) that it consists of. A group's map is those of its query heads as one vector.
    AttentionMaps(const Model& model, std::vector<Unit> units, std::vector<std::set<size_t>> samples);

    // What an observer must see.
    std::set<std::pair<size_t, Tap>> taps() const;
    // Takes one position's probabilities of a step; positions must come in the same order in every step.
    void see(const Tapped& seen);
    void end_step();
    // Throws Error(input) when no position showed probabilities.
    void end_sequence();
    // The next sequence is another process's.
    void skip_sequence() { ++sequences_; }
    // Behind the text, of which every process has seen a sequence: what all processes of group() have seen.
    void merge_over_processes();

    MapSimilarity similarity() const;
    // [sample]: units x units, mean cosines over its sequences; undefined for units without maps.
    std::vector<SquareMatrix> sample_cosines() const;

private:
    struct Rows {  // of the Gram matrix
        size_t first = 0, count = 0;
    };
    size_t owner(size_t position) const;
    const Rows* rows_of(size_t position) const;
    double layer_cosine(const Rows& a, const Rows& b, bool of_means) const;
    SquareMatrix unit_cosines() const;

    const Model& model_;
    std::vector<Unit> units_;
    std::vector<std::set<size_t>> samples_;

    std::map<size_t, Rows> rows_;  // by position that showed probabilities
    size_t heads_ = 0;
    std::vector<float> step_;  // [head][what tokens of this step see]
    DotProducts gram_{0};

    size_t sequences_ = 0;
    std::vector<std::vector<RunningMean>> layers_, mean_maps_;  // lower triangles, by row of rows_
    SquareMatrix head_sums_;
    std::vector<SquareMatrix> sample_sums_;
    std::vector<size_t> sample_counts_;
};

}  // namespace refold
