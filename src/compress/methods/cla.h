// Cross-layer attention: keys and values of a superblock's first layer serve all.
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kCla;

}  // namespace refold
