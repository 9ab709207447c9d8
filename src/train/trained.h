// Selects the tensors of a model to train.
#pragma once

#include <set>
#include <string>

#include "model/model.h"

namespace refold {

// `selection`: a comma-separated list of groups and of patterns of stored tensors' names, applied in order.
// '-' before an entry removes its tensors; a list that begins with '-' starts from `all`.
//   all     every tensor except the rotary frequencies
//   layers  what layers use: all without embeddings, final norm and output
//   lora    low-rank terms added to other weights
//   comp    W_c
//   exit    exit maps
//   norms   norms' weights and biases
//   prefix  prefix keys and values
//   head    the output layer, which may be the same tensor as the embeddings
//   packed  tensors of quantized types; "-packed" is allowed where there are none
// A pattern is a glob over the names in the file: "blk.*.attn_q.weight". Throws Error(usage) for a group
// without tensors in this model, for a pattern that matches no tensor (suggesting names), and when no tensor
// is left.
std::set<std::string> trained_tensors(const Model& model, const std::string& selection);

}  // namespace refold
