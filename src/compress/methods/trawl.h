// TRAWL: one CP or Tucker decomposition of several matrices stacked to a tensor (arXiv 2406.17261; figure 2
// b, e of the TensorLLM paper).
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kTrawl;

}  // namespace refold
