// What of a vocabulary would end the process in libllama, or take time and memory beyond all measure there.
#pragma once

#include <string>

#include "io/gguf.h"

namespace refold {

// Throws Error(unsupported) where there is no vocabulary that libllama can run, Error(input) where it is
// damaged. `label` names it in errors.
void check_vocabulary(const GgufMetadata& metadata, const std::string& label);

}  // namespace refold
