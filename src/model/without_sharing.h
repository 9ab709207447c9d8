// The dense form of a model, for exports and comparisons.
#pragma once

#include "model/model.h"

namespace refold {

// The same function without any sharing: every layer has dense tensors of its own under the family's names,
// all layers of the largest layer's size, with zeros for what others lack. Quantized bytes are copied where
// all tensors of a weight have one type; products of factors get the widest type of their factors. Tensors
// are computed when read. Throws Error(unsupported) for prefix keys and values, attention of other layers and
// W_c.
Model without_sharing(const Model& model);

// The same function with a matrix of its own for every slot whose heads are columns (attn.o) of several
// tensors. Quantized bytes are copied where these have one type; else the slot stays as it is.
Model with_whole_columns(Model model);

// The same function for tokens that run all loops.
Model without_exits(Model model);

}  // namespace refold
