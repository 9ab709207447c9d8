// GGUF files of some families hold maps of one input as one tensor: Q, K and V of a layer, or gate and up. In
// memory they are always apart.
#pragma once

#include "model/model.h"

namespace refold {

// Replaces such tensors of each layer (Family::fused, and blk.N.attn_qkv.* in all families) by views of their
// rows. Throws Error(input) for a tensor of another shape.
void split_fused_maps(Model& model, size_t layers);

// The tensors to write: maps joined again where the family wants that and all of them are stored whole and in
// one type.
std::map<std::string, Tensor> with_fused_maps(const Model& model);

}  // namespace refold
