#include "train/train.h"

#include "engine/torch/plugin.h"

namespace refold {

TrainResult train(const TrainRequest& request) {
    auto* const function = reinterpret_cast<TrainFunction*>(torch_plugin::find(kTrainSymbol));
    TrainResult result;
    function(request, result);
    return result;
}

}  // namespace refold
