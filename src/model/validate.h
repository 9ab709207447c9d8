// Does a model hang together? A file's claims are checked here before anything is computed from it.
#pragma once

#include "model/model.h"

namespace refold {

// Checks that every slot of every layer resolves: tensors exist, shapes, ranks and head ranges fit the
// configuration, shared columns are whole quantization blocks. Throws Error(input) naming layer and slot.
void validate(const Model& model);

}  // namespace refold
