// Closed-form repair: the linear maps that end attention and FFN are solved anew, layer by layer, so that the
// residual stream is the original model's again.
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kRefit;

}  // namespace refold
