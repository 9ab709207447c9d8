// Moves the gains of norms into the linear maps that follow them.
#pragma once

#include <string>

#include "model/model.h"

namespace refold {

// The same function with ones for the gains g of attn.norm and ffn.norm. The maps that read the normed stream
// (q, k, v, gate, up) become W diag(g). A layer norm's bias b becomes zero, and W b is added to the bias of
// these maps. Norms of heads and of modules' outputs follow the maps and stay. Each layer must have its own
// tensors in these slots. New matrices are computed when they are read; for `type` see computed_type().
// Throws Error(unsupported) for layers without these norms (post-norm), and where a map has no slot for the
// bias.
Model fold_norms(const Model& model, const std::string& type);

}  // namespace refold
