// Models whose weights are finite numbers.
#pragma once

#include <string>

#include "io/finite.h"
#include "model/model.h"

namespace refold {

// The bytes of a tensor. Throws Error(input) naming the tensor, row, column and value of the first element
// that is NaN or infinite, or that the tensor's type cannot hold.
TensorBytes finite_bytes(const Tensor& tensor, const std::string& name);

// Checks all tensors of a model in one pass. Call it before a computation whose result would not show that
// the weights are broken. Of shapes alone nothing is read.
void check_finite(const Model& model, int threads = 0);

}  // namespace refold
