// LLMDrop: modules whose output resembles their input most are left out.
#pragma once

#include "compress/method.h"

namespace refold {

extern const Method kLlmDrop;

}  // namespace refold
