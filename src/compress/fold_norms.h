// Norm gains moved into the linear maps that follow them.
#pragma once

#include <string>

#include "model/model.h"

namespace refold {

// The same function with ones for the gains of attn.norm and ffn.norm: W diag(g) in the maps that read the
// normalised stream (q, k, v, gate, up), and W b added to their biases where a layer norm has a bias b, which
// becomes zeros. Norms of heads and of modules' outputs are behind the maps and stay. Every position must
// have tensors of its own for these slots. New matrices are computed when they are read, in the type that
// `type` (see computed_type()) says. Throws Error(unsupported) for layers without these norms (post-norm),
// and where a bias has no slot to go to.
Model fold_norms(const Model& model, const std::string& type);

}  // namespace refold
