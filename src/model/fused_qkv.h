// GGUF files of some families hold Q, K and V of a layer as one tensor. In memory they are always three.
#pragma once

#include "model/model.h"

namespace refold {

// Replaces blk.N.attn_qkv.* of each layer by views of its rows. Throws Error(input) for a tensor of another
// shape.
void split_fused_qkv(Model& model, size_t layers);

// The tensors to write: Q, K and V of a layer joined again where the family wants that and all three are
// stored whole and in one type.
std::map<std::string, Tensor> with_fused_qkv(const Model& model);

}  // namespace refold
