// The training loop.
#pragma once

#include "train/torch/objective.h"
#include "train/torch/processes.h"

namespace refold {

// What train() does, but for objectives with a loop of their own.
TrainResult train_by_steps(const TrainRequest& request, Processes& processes);

// Sequences of `data` as a batch on `device`.
TrainBatch make_batch(const TrainData& data, std::span<const int64_t> sequences, bool held_out,
                      at::Device device);

// A held-out loss that is this much above the one before training, in nats per token, ends a run as diverged.
inline constexpr double kDivergence = 3;

}  // namespace refold
