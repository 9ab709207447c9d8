// Tensors whose rows are folded (fold() in io/dtype.h): how files describe them, and models without them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

// The JSON of the key "refold.folded" for these tensors; empty when none is folded.
std::string folded_to_json(const std::map<std::string, Tensor>& tensors);
// Gives tensors as a file has them the shapes of their matrices. Throws Error(input) for a description that
// does not fit the tensors.
void unfold_shapes(const std::string& json, std::map<std::string, Tensor>& tensors);
// As a file has it: rows of whole blocks.
std::vector<int64_t> folded_shape(const Tensor& tensor);

// The model with folded tensors in another type: `type`, or the larger one that llama.cpp takes where blocks
// do not divide rows. Nothing when no tensor is folded.
std::optional<Model> without_folds(const Model& model, std::optional<DType> type = {});

}  // namespace refold
