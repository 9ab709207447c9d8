// A training objective computes the loss of a batch.
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
    at::Tensor targets;  // [sequences * context] int64: the next tokens
    at::Tensor scored;   // [sequences * context] bool
    // Numbers of the sequences, in TrainData or in its held-out sequences.
    std::vector<int64_t> sequences;
    bool held_out = false;
};

// Sums over tokens, so that the loss does not depend on the micro-batch size. The loss of a step is sum /
// tokens, each over all micro batches and processes, plus Objective::penalty, which depends only on the
// weights and counts once per step.
struct BatchLoss {
    at::Tensor sum;
    int64_t tokens = 0;                   // scored tokens
    std::map<std::string, double> parts;  // sums over tokens for the metrics; always the same names
};

class Objective {
public:
    virtual ~Objective() = default;
    // Called before the first step, also of a resumed run. `fit` and `held_out` are the sequences that this
    // process uses in the whole run, in order. Tensors that it keeps must be on the model's device.
    virtual void prepare(const TorchModel& /*model*/, const std::vector<int64_t>& /*fit*/,
                         const std::vector<int64_t>& /*held_out*/) {}
    virtual BatchLoss loss(const TorchModel& model, const TrainBatch& batch) = 0;
    // Undefined when the objective has no penalty.
    virtual at::Tensor penalty(const TorchModel&) { return {}; }
};

// Throws Error(usage) for options that do not fit.
std::unique_ptr<Objective> make_objective(const TrainRequest& request);

}  // namespace refold
