// Activation functions by name.
#pragma once

#include <string>

#include "model/config.h"

namespace refold {

// "silu", "gelu", ...: the names in config.json. Throws Error(unsupported) naming `where` and the known ones.
const char* activation_name(Activation activation);
Activation activation_from_name(const std::string& name, const char* where);

}  // namespace refold
