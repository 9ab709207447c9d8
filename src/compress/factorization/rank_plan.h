// Which maps become factors, and of which rank.
#pragma once

#include <cstdint>
#include <vector>

#include "compress/method/method.h"
#include "compress/quantization/unquantized_grams.h"
#include "model/model.h"

namespace refold {

// The matrices of a slot in one layer, or in several that share the factor V of their inputs.
struct FactoredMap {
    Slot slot{};
    std::vector<size_t> layers;
    SlotShape shape;
    int64_t rank = 0;  // 0: stays as it is

    int64_t outputs() const { return shape.out * static_cast<int64_t>(layers.size()); }
    int64_t full() const { return std::min(shape.in, outputs()); }
    int64_t dense() const { return shape.in * outputs(); }
    int64_t factors(int64_t of_rank) const { return of_rank * (shape.in + outputs()); }
    // The largest rank whose factors have at most `part` of the numbers of the matrices, at least 1.
    int64_t rank_for(double part) const;
};

// The maps of `slots`; those of `shared` slots in groups of `share` of the layers that have them. Throws
// Error(unsupported) for weights that other layers or slots use, or that are no whole matrices.
std::vector<FactoredMap> factored_maps(const Model& model, const std::vector<size_t>& layers,
                                       const std::vector<Slot>& slots, const std::vector<Slot>& shared,
                                       size_t share);

// The inputs that they have in a model.
std::set<UnquantizedGrams::Place> places_of(const std::vector<FactoredMap>& maps);
// Sum of the Gram matrices of the inputs of all layers of a map.
std::vector<double> gram_of(const FactoredMap& map, const UnquantizedGrams& grams);
// The matrices of all layers of a map, one below the other.
std::vector<float> weights_of(const Model& model, const FactoredMap& map);

// Gives each map the rank, or none, with which all together lose least with `part` of their numbers. The
// error of a map of some rank is what its outputs lose (SVD-LLM), in a unit that is measured for each map:
// the divergence of the next token (NextTokenMetric) with four fifths of its numbers. Kept in the work
// folder.
void allocate_ranks(std::vector<FactoredMap>& maps, double part, const Model& model,
                    const UnquantizedGrams& grams, const Step& step);

}  // namespace refold
