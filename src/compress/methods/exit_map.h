// Exit maps: what makes the residual stream at the end of a loop readable for the final norm and the head.
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kExitMap;

}  // namespace refold
