// (1 - alpha) * cross entropy + alpha * divergence from the teacher's distribution (Relaxed Recursive
// Transformers, section 3.6, table 9).
#pragma once

#include "train/torch/objective.h"

namespace refold {

// Options: alpha, divergence (fkl, rkl, jsd, tvd), temperature, teacher_cache.
std::unique_ptr<Objective> make_distill(const TrainRequest& request);

}  // namespace refold
