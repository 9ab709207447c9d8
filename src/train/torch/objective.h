// An objective of training: from a batch to a loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/torch/model.h"
#include "train/train.h"

namespace refold {

struct TrainBatch {
    at::Tensor tokens;   // [sequences, context] int64
    at::Tensor targets;  // [sequences * context]: the tokens behind them
    at::Tensor scored;   // [sequences * context] bool
    // Which sequences these are: of TrainData, or of what it holds out.
    std::vector<int64_t> sequences;
    bool held_out = false;
};

// Sums over tokens, so that batches add up exactly however they are cut: the loss of a step is sum / tokens,
// both over all micro batches and processes, plus `penalty`, which is of the weights alone and counts once a
// step.
struct BatchLoss {
    at::Tensor sum;
    int64_t tokens = 0;  // the scored ones
    std::map<std::string, double>
        parts;  // sums over tokens as well, for the metrics; of the same names each time
};

class Objective {
public:
    virtual ~Objective() = default;
    // Before the first step, of a resumed run as well: `fit` and `held_out` are the sequences that this
    // process meets in the whole run, in order. What it keeps must be on the model's device.
    virtual void prepare(const TorchModel& /*model*/, const std::vector<int64_t>& /*fit*/,
                         const std::vector<int64_t>& /*held_out*/) {}
    virtual BatchLoss loss(const TorchModel& model, const TrainBatch& batch) = 0;
    // Undefined: none.
    virtual at::Tensor penalty(const TorchModel&) { return {}; }
};

// Throws Error(usage) for options that do not fit.
std::unique_ptr<Objective> make_objective(const TrainRequest& request);

}  // namespace refold
