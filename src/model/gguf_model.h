// Models as GGUF files describe them.
#pragma once

#include <map>
#include <string>

#include "model/model.h"

namespace refold {

// The model that a file with these keys and tensors holds. Only tensors that list rows are read
// (row_parts.h). Throws Error(input) and Error(unsupported) naming key or tensor.
Model gguf_model(GgufMetadata metadata, std::map<std::string, Tensor> tensors);

}  // namespace refold
