// A configuration as JSON, for those who read it in other languages.
#pragma once

#include <string>

#include "model/config.h"

namespace refold {

// The fields under their names; choices under the names of their enumerators, the activation as in
// config.json. Lists by layer may repeat, as ModelConfig says.
std::string to_json(const ModelConfig& config);

}  // namespace refold
