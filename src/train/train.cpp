#include "train/train.h"

#include "engine/torch/plugin.h"

namespace refold {

TrainResult train(const TrainRequest& request) {
    return torch_plugin::ask<TrainResult>(kTrainSymbol, request);
}

}  // namespace refold
