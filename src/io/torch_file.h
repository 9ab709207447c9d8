// Reader of the weights that PyTorch saves ("pytorch_model.bin"): a zip archive with a pickle that describes
// tensors. Python runs what a pickle says; here it is a format, and only what describes tensors is read.
#pragma once

#include <string>

#include "io/safetensors.h"

namespace refold {

// The tensors of a saved state dict, with the names of element types that safetensors have. Spans are views
// of the mapped file; tensors that share a storage overlap, and a span may not be aligned for its type.
// Throws Error(io) when the file cannot be read, Error(input) naming file and place when it is malformed,
// calls anything but the rebuilding of tensors, or holds something else, Error(unsupported) for files of
// PyTorch before version 1.6 and for tensors whose elements do not lie one after the other.
SafetensorsFile read_torch_file(const std::string& path);

}  // namespace refold
