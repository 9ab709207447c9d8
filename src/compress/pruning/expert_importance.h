// How much the experts of a layer do for the tokens that are routed to them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"

namespace refold {

enum class ExpertMeasure {
    reap,  // mean over the tokens routed to it of router weight times L2 norm of its output (REAP)
    uses,  // part of all tokens that are routed to it
};

class ExpertImportance {
public:
    // Holds the layer's weights as floats. `model` must outlive this object.
    ExpertImportance(const Model& model, size_t layer, ExpertMeasure measure);

    // Adds tokens by their normed inputs of the mixture [tokens, n_embd], float32.
    void add(std::span<const float> inputs);
    // Of each expert, over the tokens of all processes of group(); 0 for one that no token used.
    std::vector<double> finish() const;

private:
    void add_outputs(int64_t expert, std::span<const float> inputs, std::span<const float> weights);

    const Model& model_;
    size_t layer_;
    ExpertMeasure measure_;
    std::vector<float> router_, router_bias_;
    std::vector<float> gate_, up_, down_;                 // of all experts; only for ExpertMeasure::reap
    std::vector<float> gate_bias_, up_bias_, down_bias_;  // empty: none
    std::vector<double> sums_, uses_;                     // by expert
    double tokens_ = 0;
};

}  // namespace refold
