// The training loop.
#pragma once

#include "train/torch/objective.h"
#include "train/torch/processes.h"

namespace refold {

// Implements train() for objectives without their own loop.
TrainResult train_by_steps(const TrainRequest& request, Processes& processes);

// Sequences of `data` as a batch on `device`.
TrainBatch make_batch(const TrainData& data, std::span<const int64_t> sequences, bool held_out,
                      at::Device device);

// A run has diverged when its held-out loss exceeds the one before training by this much (nats per token).
inline constexpr double kDivergence = 3;

}  // namespace refold
