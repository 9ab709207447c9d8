// Ranks of factors padded with zeros, where a multiple of some unit runs faster or is stored smaller.
#pragma once

#include <functional>
#include <optional>

#include "model/model.h"

namespace refold {

// The model with the rank of every LowRank that is `wanted` padded to a multiple of `unit`: zero columns at
// the end of U and of the scale, zero rows at the end of V. Each padded tensor is added once, under a name of
// its own. Nothing when no rank needs padding.
std::optional<Model> with_filled_ranks(const Model& model, int64_t unit,
                                       const std::function<bool(const LowRank&)>& wanted = nullptr);

}  // namespace refold
