// The state of a training run on disk: one safetensors file, which is replaced when the next one is complete.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "train/torch/optimiser.h"
#include "train/torch/processes.h"

namespace refold {

struct TrainState {
    int64_t step = 0;        // of the optimiser, done; the data position is step * batch
    int64_t evaluated = -1;  // the last step after which the held-out loss was computed
    double loss = std::numeric_limits<double>::quiet_NaN();  // of the last step
    double held_out_before = std::numeric_limits<double>::quiet_NaN();
    double held_out = std::numeric_limits<double>::quiet_NaN();
    double best = std::numeric_limits<double>::infinity();  // smallest held-out loss, and after which step
    int64_t best_step = 0;
    int64_t worse = 0;  // evaluations since then
    bool stopped_early = false, finished = false;
};

using Leaves = std::map<std::string, at::Tensor>;

class Checkpoint {
public:
    // `identity` as in TrainRequest. Only the process of rank 0 touches the folder.
    Checkpoint(std::string folder, std::string identity, Processes& processes);

    const std::string& path() const { return path_; }
    // Of all processes together. `best` are the weights at TrainState::best_step, empty when they are not
    // kept. Throws Error(io), e.g. when the disk is full: the earlier checkpoint is as it was.
    void save(const TrainState& state, const Leaves& weights, const Leaves& best, const Optimiser& optimiser);
    // False when there is none. Fills in everything on all processes, bit for bit; `best` gets tensors when
    // some were kept. Throws Error(input) for one of another run (naming what differs) or number of
    // processes, or a damaged one.
    bool restore(TrainState& state, Leaves& weights, Leaves& best, Optimiser& optimiser);

private:
    void check(const std::map<std::string, std::string>& metadata) const;
    // Rank 0's numbers on all processes.
    void share(std::vector<double>& numbers);

    std::string path_, identity_;
    Processes& processes_;
};

}  // namespace refold
