// Factors of a rank that vectors do not divide, filled up with zeros when loading.
#pragma once

#include <optional>

#include "model/model.h"

namespace refold {

// What every rank is brought to a multiple of: an AVX-512 vector of floats. ggml multiplies rows of another
// length number by number.
constexpr int64_t kRankUnit = 16;

// The model with zero columns behind U, zero rows below V and zeros behind the scale of every LowRank whose
// rank is no multiple of kRankUnit; each filled tensor once. Nothing when there are none.
std::optional<Model> with_aligned_ranks(const Model& model);

}  // namespace refold
