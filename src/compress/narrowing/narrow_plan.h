// How many parts each module loses.
#pragma once

#include <optional>
#include <vector>

#include "compress/narrowing/narrowable.h"
#include "linalg/surgeon.h"

namespace refold {

struct NarrowGoal {
    double ffn = 0;                         // part of all channels that goes
    std::optional<double> attention = 0;    // of all KV groups; nothing: they compete with the channels
    std::optional<double> parameters = {};  // of the model that stay, in place of `ffn`
    int64_t added = 0;                      // parameters that the step adds (biases)
    int64_t multiple = 1;                   // of channels, that an FFN keeps
};

// Throws Error(usage) when the modules have fewer parameters than the goal takes.
void check_goal(const Model& model, const std::vector<Narrowable>& modules, const NarrowGoal& goal);

// By module of narrowable_modules(): the same part of every layer.
std::vector<int64_t> uniform_removals(const Model& model, const std::vector<Narrowable>& modules,
                                      const NarrowGoal& goal);

// What modules lose with their parts: by number of removed parts from 0, up to the most that may go.
using RemovalCosts = std::vector<std::vector<double>>;
// By module: the removals of the smallest total cost.
std::vector<int64_t> global_removals(const Model& model, const std::vector<Narrowable>& modules,
                                     const NarrowGoal& goal, const RemovalCosts& costs);

// The costs in divergence, the same for every goal. The surgeon's errors on the inputs that the module has in
// `model` say how they grow with the number of parts, and a probe how much the next token's distribution
// depends on them: the divergence that the module causes alone with an eighth of its parts removed (one, if
// that is more). At most three quarters of the channels may go.
RemovalCosts removal_costs(const Model& model, const std::vector<Narrowable>& modules, const Step& step);

// The surgeon with the option `select`: obs or activation.
std::vector<Removals> removals(const std::string& select, const SurgeonMap& map,
                               std::span<const int64_t> counts);

}  // namespace refold
