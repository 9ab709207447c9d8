// W_c for layers whose attention is shared or gone: UniAttn's linear compensation as a step of its own.
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kCompensation;

}  // namespace refold
