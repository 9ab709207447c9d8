// Files and directories -> models.
#pragma once

#include <string>

#include "model/model.h"

namespace refold {

// Reads a GGUF file (refold's own or any of a supported family), a Hugging Face directory, or a bare
// config.json (see is_bare_config()), and validates it. Weights are mapped, not read. Throws Error(io),
// Error(input), Error(unsupported) naming the file and the tensor, layer or key.
Model load_model(const std::string& path);
Model load_gguf_model(const std::string& path);

}  // namespace refold
