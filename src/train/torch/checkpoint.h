// The state of a training run on disk: one safetensors file, replaced only when the next one is complete. It
// has whole tensors, by the names of leaves, so that it does not depend on the number of processes:
// "weights.NAME", "optimizer.m.NAME", "optimizer.v.NAME", "best.NAME".
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "io/safetensors.h"
#include "train/torch/optimizer.h"
#include "train/torch/processes.h"

namespace refold {

struct TrainState {
    int64_t step = 0;        // optimizer steps done; the next sequence is number step * batch
    int64_t evaluated = -1;  // step of the last held-out evaluation
    double loss = std::numeric_limits<double>::quiet_NaN();  // of the last step
    double held_out_before = std::numeric_limits<double>::quiet_NaN();
    double held_out = std::numeric_limits<double>::quiet_NaN();
    double best = std::numeric_limits<double>::infinity();  // smallest held-out loss
    int64_t best_step = 0;                                  // step of that loss
    int64_t worse = 0;                                      // evaluations since then
    bool stopped_early = false, finished = false;
};

class Checkpoint {
public:
    // `identity` as in TrainRequest. Only the process of rank 0 touches the folder.
    Checkpoint(std::string folder, std::string identity, Processes& processes);

    const std::string& path() const { return path_; }
    // Collective: all processes must call it. `best` are the weights at TrainState::best_step, of this
    // process's share, or undefined. Throws Error(io), e.g. when the disk is full; the earlier checkpoint is
    // then unchanged.
    void save(const TrainState& state, const at::Tensor& best, const Optimizer& optimizer);
    // Restores everything bit for bit on all processes - leaves, the optimizer's state, and `best` if it was
    // saved - whatever the number of processes that saved it. Returns false when there is no checkpoint.
    // Throws Error(input) for a checkpoint of another run (naming the differences), an earlier version's, or
    // a damaged one.
    bool restore(TrainState& state, at::Tensor& best, Optimizer& optimizer);

private:
    void check(const std::map<std::string, std::string>& metadata) const;
    // Broadcasts rank 0's numbers.
    void share(std::vector<double>& numbers);
    at::Tensor stored(const SafetensorsFile& file, const std::string& name) const;
    // From rank 0's file: the elements of all leaves that belong to this process's share.
    void restore(const SafetensorsFile* file, const std::string& prefix, const Shares& shares,
                 at::Tensor own);

    std::string path_, identity_;
    Processes& processes_;
};

}  // namespace refold
