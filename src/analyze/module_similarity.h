// How much modules change the residual stream: the smaller, the less is lost without them.
#pragma once

#include <set>
#include <vector>

#include "analyze/statistics.h"
#include "model/model.h"
#include "model/tap.h"

namespace refold {

// Cosines of a module's input with its output, over tokens: x with x + f(x), x being the residual stream
// before the norm (LLM-Drop; UniAttn, section 4.1). Compensation of shared attention counts as part of the
// attention, but not where attention and FFN read the same residual stream.
struct ModuleSimilarity {
    RunningMean attention, ffn, layer;  // of no tokens where the position does not have the module
};

class ModuleSimilarities {
public:
    explicit ModuleSimilarities(const Model& model)
        : model_(model), positions_(model.topology.positions.size()) {}

    std::set<std::pair<size_t, Tap>> taps() const;
    // Activations of a step, in the order of the forward pass.
    void see(const Tapped& seen);
    // `residual`: behind the last position.
    void end_step(std::span<const float> residual);
    // Behind the text: what all processes of group() have seen.
    void merge_over_processes();

    const std::vector<ModuleSimilarity>& positions() const { return positions_; }

private:
    bool has_attention(size_t position) const;

    const Model& model_;
    std::vector<ModuleSimilarity> positions_;
    std::vector<float> input_, residual_;  // of the position that was seen last
};

}  // namespace refold
