// Numbers that follow from a model's configuration and a recipe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compress/compress.h"
#include "papers/paper_table.h"

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

// The planned numbers of a row's columns on a model, in their units; nothing for other columns. `recipe` is
// the row's, or the one that stands for it on this model. Throws as plan().
std::vector<std::optional<double>> planned_cells(const PaperTable& table, const PaperRow& row,
                                                 const Model& model, const std::optional<Recipe>& recipe);

}  // namespace refold
