// Training: steps of gradient descent on text, see train/train.h.
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kTrain;

}  // namespace refold
