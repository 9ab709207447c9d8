// Leaving out experts of mixtures.
#pragma once

#include <vector>

#include "model/model.h"

namespace refold {

// Throws Error(unsupported) on behalf of `method` when experts of one of `layers` are made of factors, come
// from several tensors, or are used by another layer.
void need_own_experts(const Model& model, const std::vector<size_t>& layers, const char* method);

// The layer keeps the experts `kept` (ascending, at least as many as a token uses), with their rows of the
// router. See need_own_experts().
void keep_experts(Model& model, size_t layer, const std::vector<int64_t>& kept);

// Sets ModelConfig::n_expert, and the metadata's number, to the most that a layer has.
void set_most_experts(Model& model);

}  // namespace refold
