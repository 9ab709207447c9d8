#pragma once

#include "model/family.h"

namespace refold {

extern const Family kLlamaFamily;

}  // namespace refold
