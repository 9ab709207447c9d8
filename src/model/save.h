// Models -> GGUF files.
#pragma once

#include <string>

#include "model/model.h"

namespace refold {

// Writes one GGUF file: every stored tensor once, the topology under "refold.topology" when it is not the
// implied one (a model without sharing is plain GGUF), refold's
// version under "refold.version". Streams tensor by tensor; atomic. Throws Error(internal) when a reader
// would get another model from the file, and Error(input) naming the element for weights that are not finite.
void save_model(const Model& model, const std::string& path, bool overwrite);

}  // namespace refold
