// Resolves MODEL arguments to paths.
#pragma once

#include <string>

namespace refold {

// Returns an existing path as it is, else the path of a pulled catalogue model or hub model
// (org/name[@revision][:QUANT]). Throws Error(usage), saying how to get the model or which names exist, when
// it has not been pulled, and Error(io) when the argument looks like a path but nothing is there.
std::string resolve_model(const std::string& argument);

}  // namespace refold
