// Whether all processes of a run do the same.
#pragma once

#include "train/torch/processes.h"
#include "train/train.h"

namespace refold {

// Throws Error(usage) in every process unless all have the same model, text and options; it names the ranks
// that differ from the first process, and in these what differs. Collective.
void check_agreement(const TrainRequest& request, Processes& processes);

}  // namespace refold
