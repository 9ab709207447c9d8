// Activation functions by name.
#pragma once

#include <string>

#include "model/config.h"

namespace refold {

// "silu", "gelu", ...: the names in config.json. Throws Error(unsupported) naming `where` and the known ones.
const char* activation_name(Activation activation);
Activation activation_from_name(const std::string& name, const char* where);

// The inner activation of a gated FFN: activation(gate) * up, for swiglu_clamped as Activation says.
float gated(Activation activation, float gate, float up);

}  // namespace refold
