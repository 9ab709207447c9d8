// UniAttn: Softmax Unification in Attention, the softmax activations of a superblock's first layer serve all.
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kUniAttn;

}  // namespace refold
