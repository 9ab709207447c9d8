// Two configurations side by side: what a file says, and what the model is.
#pragma once

#include <string>

#include "model/config.h"

namespace refold {

// The first difference that changes what a model of `layers` layers computes: "layer 3: FFN channels 128
// instead of 64", where `expected` has 64. Empty: there is none.
std::string config_difference(const ModelConfig& got, const ModelConfig& expected, size_t layers);

}  // namespace refold
