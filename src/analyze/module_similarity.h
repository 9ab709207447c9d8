// How much each module changes the residual stream. Dropping a module that changes it little loses little.
#pragma once

#include <set>
#include <vector>

#include "analyze/statistics.h"
#include "model/model.h"
#include "model/tap.h"

namespace refold {

// Cosines of a module's input x with its output x + f(x), over tokens; x is the residual stream before the
// norm (LLM-Drop; UniAttn, section 4.1). Compensation of shared attention counts as part of the attention,
// except where attention and FFN read the same residual stream.
struct ModuleSimilarity {
    RunningMean attention, ffn, layer;  // without values when the layer lacks the module
};

class ModuleSimilarities {
public:
    explicit ModuleSimilarities(const Model& model) : model_(model), layers_(model.topology.layers.size()) {}

    std::set<std::pair<size_t, Tap>> taps() const;
    // Takes the activations of a step, in the order of the forward pass.
    void see(const Tapped& seen);
    // `residual` is the residual stream after the last layer.
    void end_step(std::span<const float> residual);
    // Call after the text: combines the statistics of all processes of group().
    void merge_over_processes();

    const std::vector<ModuleSimilarity>& layers() const { return layers_; }

private:
    bool has_attention(size_t layer) const;

    const Model& model_;
    std::vector<ModuleSimilarity> layers_;
    std::vector<float> input_, residual_;  // of the latest layer
};

}  // namespace refold
