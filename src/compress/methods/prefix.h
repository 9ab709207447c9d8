// Prefix tuning: trained keys and values before the sequence, of every position's own.
// "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA", Appendix K.
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kPrefix;

}  // namespace refold
