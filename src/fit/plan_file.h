// The files that choices of types give: their recipe and their size, without measuring anything.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compress/recipe.h"
#include "fit/candidates.h"

namespace refold {

// Option `types` of the method quantize for a choice: by tensor, an index into its candidates.
std::string types_option(const std::vector<FitTensor>& tensors, const std::vector<size_t>& chosen);

// The step that gives a model these types. For stock llama.cpp (RowLayout::whole_blocks) it makes no biases
// that llama.cpp does not read: for_stock() refuses them. `resolve`: maps are solved before they are rounded.
Recipe quantize_recipe(const Model& model, const std::string& types, RowLayout layout, bool resolve = true);

// Bytes of the model's file, or a little more: tensors, metadata, provenance with the recipe that made it.
// `matrices`: how many types the recipe chooses.
uint64_t file_bytes(const Model& made, size_t matrices = 0);
// The same for what the recipe makes of a model.
uint64_t file_bytes(const Model& model, const Recipe& recipe, size_t matrices);

// Throws Error(usage) naming the smallest possible file when one of the sizes is below it, and
// Error(unsupported) when the model has no matrix whose type could be chosen.
void check_sizes(const Model& model, RowLayout layout, std::span<const uint64_t> sizes);

}  // namespace refold
