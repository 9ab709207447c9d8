// Given to training steps by the caller who applies a recipe.
#pragma once

#include <functional>
#include <string>

#include "train/data.h"

namespace refold {

struct Training {
    std::function<TrainTokenizer()> tokenizer;  // of the model that the recipe is applied to
    // For tokens and checkpoints: the same folder when a run is repeated. Not needed once the model is
    // written.
    std::string folder;
    std::string metrics;  // folder of loss curves and of kept models, which stay; empty: none
};

}  // namespace refold
