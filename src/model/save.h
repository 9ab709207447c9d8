// Models -> GGUF files.
#pragma once

#include <string>

#include "model/model.h"

namespace refold {

// Writes one GGUF file: every stored tensor once, the topology under "refold.topology" when it is not the
// implied one (a model without sharing is plain GGUF), refold's
// version under "refold.version". Streams tensor by tensor; atomic.
void save_model(const Model& model, const std::string& path, bool overwrite);

}  // namespace refold
