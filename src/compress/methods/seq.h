// Consecutive layers of the latter part share their weights: the layer-wise baseline of head sharing.
// "Head-wise Shareable Attention for Large Language Models", appendix G.2, after Takase and Kiyono's
// SEQUENCE.
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kSeq;

}  // namespace refold
