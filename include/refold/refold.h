// refold's public interface. All names are in namespace refold; nothing of ggml, JSON or YAML shows here. All
// functions report errors by throwing refold::Error (refold/error.h).
//
// The interface may change between minor versions until 1.0.
#pragma once

#include <string>

#include "refold/compression.h"
#include "refold/control.h"
#include "refold/embedding.h"
#include "refold/error.h"
#include "refold/generation.h"
#include "refold/model.h"
#include "refold/scoring.h"
#include "refold/stored_model.h"
#include "refold/tokenizer.h"

namespace refold {

// "0.1.0"
std::string version();

}  // namespace refold
