// Training in this process.
#pragma once

#include "train/torch/trainer.h"

namespace refold {

inline TrainResult alone(const TrainRequest& request) {
    Processes processes;
    return train_by_steps(request, processes);
}

}  // namespace refold
