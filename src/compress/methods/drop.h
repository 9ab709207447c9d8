// Attention modules, FFNs or whole layers are left out: the baseline of equal stored size.
// He et al., "What Matters in Transformers? Not All Attention is Needed".
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kDrop;

}  // namespace refold
