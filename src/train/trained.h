// Which tensors of a model are trained.
#pragma once

#include <set>
#include <string>

#include "model/model.h"

namespace refold {

// `selection`: a comma-separated list of groups and patterns of stored tensors' names, in order; '-' before
// one takes out what it names. A list that begins with '-' begins with `all`.
//   all     every tensor, but for the frequencies of the rotation
//   lora    low-rank terms beside other weights
//   comp    W_c
//   exit    exit maps
//   norms   norms' weights and biases
//   prefix  prefix keys and values
//   head    the output layer; the embeddings too, where they are the same tensor
// A pattern is a glob over the names in the file: "blk.*.attn_q.weight".
// Throws Error(usage) for a group that this model has nothing of, a pattern that matches no tensor (with near
// names), and when nothing is left.
std::set<std::string> trained_tensors(const Model& model, const std::string& selection);

}  // namespace refold
