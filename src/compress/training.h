// What steps that train are given by whoever applies a recipe.
#pragma once

#include <functional>
#include <string>

#include "train/data.h"

namespace refold {

struct Training {
    // Of the model that the recipe is applied to.
    std::function<TrainTokenizer()> tokenizer;
    std::string
        folder;  // tokens, checkpoints: the same when a run is repeated; not needed once the model is written
    std::string metrics;  // loss curves, which stay; empty: none
};

}  // namespace refold
