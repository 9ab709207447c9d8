// Numbers that follow from a model's configuration and a recipe.
#pragma once

#include <string>
#include <vector>

#include "compress/compress.h"

namespace refold {

// The names of all numbers.
std::vector<std::string> planned_numbers();

// One of them, of the result of plan():
//   parameters                of the whole model
//   embedding_parameters      of embeddings and output matrix
//   non_embedding_parameters  of all others
//   parameters_percent        of those before
//   kv_cache_percent          of the KV cache before
//   attention_compression     parameters of Wq, Wk, Wv and Wo before, over those after, in the layers where
//                             they changed (paper 003's compression rate)
//   layers, width, heads, kv_heads, head_size, ffn_width, vocabulary, context
// Throws Error(internal) for another name.
double planned_number(const std::string& name, const Model& before, const Compression& plan);

}  // namespace refold
