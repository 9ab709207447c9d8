// Whole FFNs that resemble one of an earlier layer take over its weights.
// "Head-wise Shareable Attention for Large Language Models", section 5.3 (Table 3).
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kFfnShare;

}  // namespace refold
