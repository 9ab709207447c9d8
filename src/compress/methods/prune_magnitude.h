// KV groups or FFN channels with the smallest weights are left out: the pruning baseline of head sharing.
// "Head-wise Shareable Attention for Large Language Models", section 5.1 and appendix C.1.
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kPruneMagnitude;

}  // namespace refold
