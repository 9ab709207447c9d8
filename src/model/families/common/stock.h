// Helpers for families that describe themselves to stock llama.cpp.
#pragma once

#include <string>

#include "model/model.h"

namespace refold {

// The same metadata for another architecture, without what is kept for the way back to the checkpoint: the
// tensors no longer are the checkpoint's.
GgufMetadata renamed_metadata(const GgufMetadata& metadata, const std::string& from, const std::string& to);

// Throws Error(unsupported): stock llama.cpp cannot express `what`.
[[noreturn]] void fail_stock(const Model& model, const std::string& what);

}  // namespace refold
