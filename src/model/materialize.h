// Weights as dense floats.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

// The weight of a slot as dense floats, row major [out][in]; `layer` tells the size where layers
// differ.
std::vector<float> materialize(const Model& model, const Expression& expression, Slot slot,
                               size_t layer = kWholeModel);
// A stored tensor as floats.
std::vector<float> floats_of(const Model& model, const std::string& tensor);
// [rows][columns] as [columns][rows].
std::vector<float> transposed(std::span<const float> matrix, int64_t rows, int64_t columns);

// 1 / L2 norm of each row of a matrix, for ModelConfig::norm_head.
std::vector<float> inverse_row_norms(const Tensor& tensor);

}  // namespace refold
