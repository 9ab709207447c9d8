// Cross entropy of the next token.
#pragma once

#include "train/torch/losses.h"
#include "train/torch/objective.h"

namespace refold {

std::unique_ptr<Objective> make_uptrain(const TrainRequest& request);

inline LogitsOf logits_of(const TorchModel& model) {
    return [&model](const at::Tensor& hidden) { return model.logits(hidden); };
}

}  // namespace refold
